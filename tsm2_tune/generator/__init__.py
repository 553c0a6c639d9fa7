"""The generator turns a problem and a device's limits into CUDA text, without using a GPU.

`problem.py` defines problems, `config.py` defines configurations, `families/` contains the kernels, and `render.py`
fills the kernels' templates. The package imports `runtime` to calculate launches, and imports nothing from `tuner`.
"""
