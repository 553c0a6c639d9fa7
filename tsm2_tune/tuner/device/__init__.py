"""Devices that run kernels: a GPU through PyCUDA (`cuda.py`), and a CPU that emulates a GPU (`emulator/`).

`interface.py` declares the interface of both. `target.py` describes a device without a CUDA context. `lock.py`
reserves a device for one run at a time.
"""
