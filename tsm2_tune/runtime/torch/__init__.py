"""Tuned kernels for PyTorch: operators of an exported module, and `install`, which overrides PyTorch's own
operators."""
