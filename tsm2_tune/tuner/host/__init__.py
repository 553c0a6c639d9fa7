"""The host as a device: the same CUDA text, compiled by the system's C++ compiler and run on the CPU."""
