"""The emulator: CUDA text compiled with the system's C++ compiler and run on the CPU.

`toolchain.py` compiles a kernel with the headers in `include/`, which emulate CUDA. `device.py` runs the kernel, in
memory that faults outside buffers (`memory.py`). `faults.py` describes a fault in a sentence.
"""

from tsm2_tune.tuner.device.emulator.entry_point import run_on_host

__all__ = ["run_on_host"]
