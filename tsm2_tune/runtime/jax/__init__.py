"""Tuned kernels for JAX: a primitive, its lowering to a custom call, and a handler for XLA's foreign function API."""
