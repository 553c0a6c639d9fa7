"""The choice of a kernel for a product: predicted times, the launch, and the winner (`choose.py`).

Pure arithmetic: the tuner imports it, too. `tuner/export/c/choose.c` and `predict.c` compute the same in C.
"""
