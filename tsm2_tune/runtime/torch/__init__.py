"""PyTorch's products by kernels: operators of an exported module, and `install`, which overrides PyTorch's own."""
