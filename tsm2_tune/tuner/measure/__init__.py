"""Timing of one kernel, of several interleaved kernels, and of cuBLAS and cuBLASLt (`vendor/`).

`timing.py` takes samples until the confidence interval of the median is narrow. `l2_state.py` prepares the L2 cache
before each sample. `cross_timing.py` times kernels at shapes at which another kernel is the fastest.
"""
