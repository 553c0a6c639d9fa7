"""The runtime of an exported Python module. `tsm2_tune.tuner.export.bundle` copies all its modules into one file.

`gemm.py` has the public functions. `choice/` chooses the kernel by predicted time, `autotune/` by timing. `arrays/`
reads the arrays of each library, and `cuda/` calls the CUDA driver. `torch/`, `jax/` and `cupy/` add functions for
these libraries. The modules import only the standard library, NumPy and one another. The tuner uses `choice/`, too.
No two modules may define the same name, because the exported file has one namespace.
"""
