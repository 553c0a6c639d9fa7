"""Choose a kernel for a product: `predict.py` predicts times, `launch.py` computes grids, `choose.py` decides.

These modules are pure arithmetic, without CUDA. The tuner imports them, too. `tuner/export/c/choose.c` and
`predict.c` compute the same in C.
"""
