"""Sets of few kernels for many shapes: which kernels an exported module holds, and what each of them gains."""
