"""gemm's `measure=True`: time kernels for a product, and keep the fastest one's choice in memory and in a file."""
