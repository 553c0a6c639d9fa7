"""Export of the fastest kernels (winners): as a Python module, a C library, tables, or a file of trials."""
