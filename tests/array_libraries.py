"""Adapters of PyTorch, CuPy and, without a GPU, NumPy for checks of an exported module."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

Matrix = np.ndarray[Any, Any]
BITS = {4: "int32", 8: "int64"}  # bytes of an element -> the integers that are compared for it


class Torch:
    """PyTorch. Its calls are ordered by the stream that is current, its new arrays are on the device that is."""

    name, has_graphs = "torch", True

    def __init__(self) -> None:
        import torch

        self.torch = torch

    def device(self) -> tuple[str, str, int]:
        """Return the first device's name, its compute capability ("" for a host), and its multiprocessors."""
        found = self.torch.cuda.get_device_properties(0)
        return found.name, f"{found.major}.{found.minor}", found.multi_processor_count

    def devices(self) -> int:
        """Return the number of devices."""
        return int(self.torch.cuda.device_count())

    def current(self) -> int:
        """The ordinal of the current device."""
        return int(self.torch.cuda.current_device())

    def at_device(self, ordinal: int) -> AbstractContextManager[Any]:
        """Make it the current one."""
        return self.torch.cuda.device(ordinal)  # type: ignore[no-any-return]

    def device_of(self, array: Any) -> int:
        """The ordinal of its device."""
        return int(array.get_device())

    def stream(self) -> Any:
        """A new one, which waits for no other."""
        return self.torch.cuda.Stream()

    def default_stream(self) -> Any:
        """The current device's, which all threads share."""
        return self.torch.cuda.default_stream()

    def at(self, stream: Any) -> AbstractContextManager[Any]:
        """Make it the current one."""
        return self.torch.cuda.stream(stream)  # type: ignore[no-any-return]

    def synchronize(self) -> None:
        """Wait for all of the current device's streams."""
        self.torch.cuda.synchronize()

    def put(self, matrix: Matrix) -> Any:
        """A copy in the same storage order."""
        if matrix.flags.c_contiguous:
            return self.torch.tensor(matrix, device="cuda")
        return self.torch.tensor(np.ascontiguousarray(matrix.T), device="cuda").T

    def get(self, array: Any) -> Matrix:
        """A copy on the host, when the current stream has come to it."""
        return np.asarray(array.cpu().numpy())

    def spoil(self, array: Any) -> None:
        """Fill it with NaN."""
        array.fill_(float("nan"))

    def room_for(self, array: Any) -> Any:
        """A new array like it, filled with NaN."""
        return self.torch.full_like(array, float("nan"))

    def count(self) -> Any:
        """A 0 to which others are added where the arrays are."""
        return self.torch.zeros((), dtype=self.torch.int64, device="cuda")

    def differs(self, one: Any, other: Any) -> Any:
        """Return whether any bit differs, as a number in the arrays' memory."""
        bits = getattr(self.torch, BITS[one.element_size()])
        return (one.view(bits) != other.view(bits)).any()

    def captured(self, stream: Any, work: Callable[[], object]) -> Callable[[], object]:
        """The work in a CUDA graph, which is started on the current stream."""
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph, stream=stream):
            work()
        replay: Callable[[], object] = graph.replay
        return replay

    def used_bytes(self) -> int:
        """Return the bytes of the current device that the library's arrays have."""
        return int(self.torch.cuda.memory_allocated())


class Cupy:
    """CuPy, as Torch is."""

    name, has_graphs = "cupy", True

    def __init__(self) -> None:
        import cupy

        self.cupy = cupy

    def device(self) -> tuple[str, str, int]:
        found = self.cupy.cuda.runtime.getDeviceProperties(0)
        return found["name"].decode(), f"{found['major']}.{found['minor']}", found["multiProcessorCount"]

    def devices(self) -> int:
        return int(self.cupy.cuda.runtime.getDeviceCount())

    def current(self) -> int:
        return int(self.cupy.cuda.runtime.getDevice())

    def at_device(self, ordinal: int) -> AbstractContextManager[Any]:
        return self.cupy.cuda.Device(ordinal)  # type: ignore[no-any-return]

    def device_of(self, array: Any) -> int:
        return int(array.device.id)

    def stream(self) -> Any:
        return self.cupy.cuda.Stream(non_blocking=True)

    def default_stream(self) -> Any:
        return self.cupy.cuda.Stream.null

    def at(self, stream: Any) -> AbstractContextManager[Any]:
        return stream  # type: ignore[no-any-return]

    def synchronize(self) -> None:
        self.cupy.cuda.Device().synchronize()

    def put(self, matrix: Matrix) -> Any:
        return self.cupy.array(matrix, order="C" if matrix.flags.c_contiguous else "F")

    def get(self, array: Any) -> Matrix:
        return np.asarray(array.get())

    def spoil(self, array: Any) -> None:
        array.fill(float("nan"))

    def room_for(self, array: Any) -> Any:
        return self.cupy.full_like(array, float("nan"))

    def count(self) -> Any:
        return self.cupy.zeros((), self.cupy.int64)

    def differs(self, one: Any, other: Any) -> Any:
        bits = BITS[one.itemsize]
        return (one.view(bits) != other.view(bits)).any()

    def captured(self, stream: Any, work: Callable[[], object]) -> Callable[[], object]:
        with stream:
            stream.begin_capture()
            work()
            graph = stream.end_capture()
        launch: Callable[[], object] = graph.launch
        return launch

    def used_bytes(self) -> int:
        return int(self.cupy.get_default_memory_pool().used_bytes())


class Numpy:
    """NumPy: one device, whose every call is done when it returns."""

    name, has_graphs = "numpy", False

    def device(self) -> tuple[str, str, int]:
        return "Some CPU", "", 2

    def devices(self) -> int:
        return 1

    def current(self) -> int:
        return 0

    def at_device(self, ordinal: int) -> AbstractContextManager[Any]:
        return nullcontext()

    def device_of(self, array: Any) -> int:
        return 0

    def stream(self) -> Any:
        return None

    def default_stream(self) -> Any:
        return None

    def at(self, stream: Any) -> AbstractContextManager[Any]:
        return nullcontext()

    def synchronize(self) -> None:
        pass

    def put(self, matrix: Matrix) -> Any:
        return matrix.copy(order="K")

    def get(self, array: Any) -> Matrix:
        return np.asarray(array)

    def spoil(self, array: Any) -> None:
        array.fill(np.nan)

    def room_for(self, array: Any) -> Any:
        return np.full_like(array, np.nan)

    def count(self) -> Any:
        return np.zeros((), np.int64)

    def differs(self, one: Any, other: Any) -> Any:
        bits = BITS[one.itemsize]
        return (one.view(bits) != other.view(bits)).any()

    def captured(self, stream: Any, work: Callable[[], object]) -> Callable[[], object]:
        raise NotImplementedError("a host captures nothing")

    def used_bytes(self) -> int:
        raise NotImplementedError("NumPy has no allocator that tells")


Arrays = Torch | Cupy | Numpy
LIBRARIES: dict[str, Callable[[], Arrays]] = {"torch": Torch, "cupy": Cupy, "numpy": Numpy}
