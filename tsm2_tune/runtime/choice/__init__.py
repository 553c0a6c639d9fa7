"""Choose a kernel for a product: `choose.py` describes the product to the core, which `core.py` calls.

`launch.py` computes grids, and `winners.py` has the kernels. The tuner imports these modules, too.
"""
