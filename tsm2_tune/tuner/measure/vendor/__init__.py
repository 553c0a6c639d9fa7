"""The vendor's libraries, cuBLAS and cuBLASLt, measured and verified beside our kernels."""
