"""The CUDA driver by ctypes: contexts and streams, loaded cubins, NVRTC, workspace."""
