"""JAX's products by kernels: a primitive, its lowering to a call of XLA's, and XLA's foreign function interface."""
