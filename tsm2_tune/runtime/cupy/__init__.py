"""CuPy's matmul with tuned kernels."""
