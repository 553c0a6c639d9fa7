"""The Python API, which the package `tsm2_tune` exports: one function for each main command."""
