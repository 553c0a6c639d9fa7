"""The host as a device: CUDA text compiled by the system's C++ compiler and run on the CPU.

`toolchain.py` compiles a kernel with the headers in `include/`, which emulate CUDA. `device.py` runs it, with memory
that faults outside buffers (`memory.py`), and `faults.py` explains a fault.
"""

from tsm2_tune.tuner.device.emulator.kernel_call import run_on_host

__all__ = ["run_on_host"]
