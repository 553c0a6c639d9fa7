"""Tuned kernels for PyTorch: new operators, and `install`, which overrides PyTorch's own operators."""
