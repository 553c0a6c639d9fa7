"""Times of kernels: of one kernel, of several in turns, and of cuBLAS and cuBLASLt (`vendor/`).

`timing.py` takes samples until the confidence interval is narrow, `l2_state.py` sets the L2 before each.
"""
