"""Devices that run kernels: a GPU through PyCUDA, and a host that emulates one. `interface.py` declares both."""
