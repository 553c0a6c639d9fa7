"""The pure half: from a problem and a device's limits to CUDA text. No GPU, no clock, no disk.

`problem.py` is what is asked for, `config.py` a point of a search space, `families/` the kernels, `render.py` their
text. It imports `runtime` for the arithmetic of a launch, and nothing of the tuner.
"""
