"""Tuned kernels for PyTorch: an exported module's operators, and `install`, which overrides PyTorch's products."""
