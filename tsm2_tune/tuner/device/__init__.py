"""Devices that run kernels: a GPU through PyCUDA, and a host that emulates one.

`interface.py` declares both. `target.py` finds them without a context, `lock.py` keeps other runs away from one.
"""
