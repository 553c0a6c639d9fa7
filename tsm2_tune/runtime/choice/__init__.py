"""Choose a kernel for a product: `predict.py` predicts times, `launch.py` computes grids, `choose.py` decides.

These modules are pure arithmetic, without CUDA. The tuner imports them, too. `core/` computes the same
in C.
"""
