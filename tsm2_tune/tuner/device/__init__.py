"""Devices that run kernels: a GPU through PyCUDA (`cuda.py`), and the host, which emulates one (`emulator/`).

`interface.py` declares the interface of both. `target.py` describes a device without a CUDA context, and `lock.py`
admits one run at a time to a device.
"""
