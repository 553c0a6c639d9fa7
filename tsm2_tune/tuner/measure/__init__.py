"""Timing of kernels, interleaved timing of several kernels, and timing of cuBLAS and cuBLASLt (`vendor/`).

`timing.py` takes samples until the confidence interval is narrow, and `l2_state.py` sets the L2 before each.
`cross_timing.py` measures kernels at shapes that they did not win.
"""
