"""Read a GPU's driver version and clock through NVML, if NVML is installed and works."""

from __future__ import annotations

import logging
from typing import Any

log = logging.getLogger(__name__)


def driver_version(drv: Any) -> str:
    """Return the driver's version from NVML. Without NVML, return the CUDA version that the driver supports."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except Exception as error:  # NVML is a convenience: whatever is wrong with it, the CUDA driver still answers
        log.debug("no NVML (%s): records contain CUDA's version instead of the driver's", error)
        version = drv.getdriver_version()
        return f"CUDA {version // 1000}.{version % 1000 // 10}"


class ClockReader:
    """Reader of a GPU's SM clock through NVML. Its result is None if NVML does not work."""

    def __init__(self, bus_id: str) -> None:
        self._handle: Any = None
        try:
            import pynvml

            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByPciBusId(bus_id)
            self._nvml: Any = pynvml
        except Exception as error:  # NVML is a convenience: without it a measurement has no clock
            log.debug("no NVML (%s): measurements record no clock", error)
            self._handle = None

    def mhz(self) -> float | None:
        if self._handle is None:
            return None
        try:
            return float(self._nvml.nvmlDeviceGetClockInfo(self._handle, self._nvml.NVML_CLOCK_SM))
        except Exception:  # whatever is wrong with NVML, the measurement has no clock
            return None
