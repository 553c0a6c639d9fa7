"""The CUDA driver API through ctypes: contexts, streams, loaded cubins, compilation, and the workspace of kernels."""
