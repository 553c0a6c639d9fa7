"""gemm's `measure=True`: time kernels for a product, and keep the choice of the fastest in memory and in a file."""
