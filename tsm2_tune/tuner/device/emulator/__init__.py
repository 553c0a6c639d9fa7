"""The host as a device: the same CUDA text, compiled by the system's C++ compiler and run on the CPU."""

from tsm2_tune.tuner.device.emulator.kernel_call import run_on_host

__all__ = ["run_on_host"]
