"""The runtime of an exported module. `tsm2_tune.tuner.export.bundle` copies its modules verbatim into one file.

`gemm.py` is the call. `choice/` chooses the kernel, `autotune/` by timing; `arrays/`, `cuda/`, `torch/`, `jax/` and
`cupy/` are what it meets. All import only the standard library, NumPy and one another. The tuner uses `choice/` too.
No two modules define the same name, since the file has one namespace.
"""
