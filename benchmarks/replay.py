"""Time a launch replayed from a CUDA graph, for products that take less time than a launch from the host."""

from __future__ import annotations

import ctypes
import statistics
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import numpy as np

from tsm2_tune.tuner.device.cuda import CudaDevice
from tsm2_tune.tuner.device.interface import Kernel, KernelFault

LAUNCHES = 20  # launches per graph, one after another
REPLAYS = 51
WARM_UPS = 3
CAPTURE_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED: a library may load modules on its first call
NOTHING = "nothing"
NOTHING_TEXT = f'extern "C" __global__ void {NOTHING}(int) {{}}\n'


class ReplayError(RuntimeError):
    """The driver cannot capture or replay a graph."""


class Streamed(Protocol):
    """A device that launches kernels on `stream`: a `pycuda.driver.Stream`, or None for the default stream."""

    stream: Any


def streamed(device: CudaDevice) -> Streamed | None:
    """Return the device if it has a selectable stream, else None. Capturing a graph needs such a stream."""
    return cast(Streamed, device) if hasattr(device, "stream") else None


def least_launch(kernel: Kernel) -> Callable[[], None]:
    """Return a function that launches one warp of an empty kernel: the shortest launch."""

    def start() -> None:
        kernel((np.int32(0),), blocks=1, threads=32)

    return start


class Replayer:
    """A stream on which launches are captured and replayed."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._stream: Any = device.drv.Stream()
        self._start, self._end = device.drv.Event(), device.drv.Event()

    @property
    def handle(self) -> int:
        """The stream's handle in the CUDA driver, for libraries."""
        return int(self._stream.handle)

    def medians_us(self, launches: Sequence[Callable[[], None]]) -> list[float]:
        """Return the median microseconds of each launch, replayed in turns with a warm L2.

        A graph repeats a launch many times, and its time is divided by the repetitions. Each launch must use this
        stream. Raise ReplayError if a launch cannot be captured.
        """
        graphs: list[ctypes.c_void_p] = []
        try:
            for launch in launches:
                graphs.append(self._captured(launch))
            samples: list[list[float]] = [[] for _ in graphs]
            for turn in range(WARM_UPS + REPLAYS):
                for step in range(len(graphs)):
                    which = (turn + step) % len(graphs)
                    us = self._replay_us(graphs[which])
                    if turn >= WARM_UPS:
                        samples[which].append(us)
        finally:
            for graph in graphs:
                self._driver.cuGraphExecDestroy(graph)
        return [statistics.median(s) for s in samples]

    def _captured(self, launch: Callable[[], None]) -> ctypes.c_void_p:
        """Return an executable graph that repeats the launch."""
        stream, graph = ctypes.c_void_p(self.handle), ctypes.c_void_p()
        device = streamed(self._device)
        if device is None:
            raise ReplayError("this device starts its kernels on the default stream, which cannot be captured")
        before, device.stream = device.stream, self._stream
        try:
            launch()  # the first launch loads modules, which is not allowed during capture
            self._device.synchronise()
            self._check(self._driver.cuStreamBeginCapture_v2(stream, CAPTURE_RELAXED), "cuStreamBeginCapture")
            try:
                for _ in range(LAUNCHES):
                    launch()
            finally:
                ended = self._driver.cuStreamEndCapture(stream, ctypes.byref(graph))
        finally:
            device.stream = before
        self._check(ended, "cuStreamEndCapture")
        executable, no_flags = ctypes.c_void_p(), ctypes.c_ulonglong(0)
        try:
            status = self._driver.cuGraphInstantiateWithFlags(ctypes.byref(executable), graph, no_flags)
            self._check(status, "cuGraphInstantiate")
        finally:
            self._driver.cuGraphDestroy(graph)
        return executable

    def _replay_us(self, graph: ctypes.c_void_p) -> float:
        self._start.record(self._stream)
        self._check(self._driver.cuGraphLaunch(graph, ctypes.c_void_p(self.handle)), "cuGraphLaunch")
        self._end.record(self._stream)
        try:
            self._end.synchronize()
        except self._device.drv.Error as error:
            raise KernelFault(str(error)) from None
        return float(self._end.time_since(self._start)) * 1e3 / LAUNCHES

    @staticmethod
    def _check(status: int, call: str) -> None:
        if status != 0:
            raise ReplayError(f"{call} answers {status}")
