"""Verification and timing of the GPU vendor's libraries, cuBLAS and cuBLASLt, for comparison with tuned kernels."""
