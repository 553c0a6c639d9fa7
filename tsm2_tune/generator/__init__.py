"""The generator: it turns a problem and a device's limits into CUDA text, without using a GPU.

`problem.py` defines problems, `config.py` the points of a search space, `families/` the kernels, and `render.py`
fills their templates. The package imports `runtime` for the arithmetic of a launch, and nothing from `tuner`.
"""
