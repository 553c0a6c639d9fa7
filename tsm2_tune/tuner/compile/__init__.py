"""CUDA text to binaries: nvcc, its environment, the cache, and compilers that run at the same time."""
