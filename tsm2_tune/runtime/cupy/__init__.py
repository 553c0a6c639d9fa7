"""CuPy's products by kernels."""
