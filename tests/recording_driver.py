"""A CUDA driver for the exported module that computes nothing and records what it is asked."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from tests.fabricated import GPU

LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


# Calls that only write a number where their first argument points; None: not even that.
ANSWERS = {"cuInit": None, "cuDriverGetVersion": 13000, "cuDevicePrimaryCtxRetain": 0xAA, "cuModuleGetFunction": 0xF0}


class RecordingDriver:
    """CUDA's driver as far as the module calls it: every array belongs to context 0xC0 of a GPU, or to `owner`."""

    bits = 32  # of the index that launches are read with
    has_batches = False  # whether launches are read as those of kernels of batches

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.launches: list[dict[str, Any]] = []
        self.owner: Callable[[int], int | None] = lambda address: 0xC0
        self.optin: list[int] = []
        self.memory: dict[int, int] = {}  # address -> size of what is allocated
        self.allocations = 0
        self.free_bytes = 1 << 20
        self.zeroed: list[tuple[int, int, int | None]] = []  # address, words, stream
        self.capturing: set[int | None] = set()
        self.captures, self.relaxed, self.workspaces = 1, False, False
        self.current: int | None = None  # context of the thread, where none is pushed
        self.pushed: list[int] = []
        self.stream_ids: dict[int | None, int] = {}  # where it is not the handle
        self.takes_us: Callable[[dict[str, Any]], float] = lambda launch: 1.0
        self.now_us = 0.0  # on the GPU
        self.events: dict[int, tuple[float, bool]] = {}  # when each was recorded, and whether that was waited for
        self.l2_bytes = 50 << 20
        self.host_needs_fills = 0  # while which it starts a product
        self.queried: list[tuple[int, int]] = []  # events that were asked whether they are over, and launches before
        self.query_error = 0
        self.devices: set[int] = set()  # that were asked for
        self.cuLaunchKernelEx = LAUNCH(self.launch)  # which programs in C call too

    def __getattr__(self, name: str) -> Callable[..., int]:
        if name not in ANSWERS:
            raise AttributeError(name)

        def call(first: Any, *_: Any) -> int:
            if ANSWERS[name] is not None:
                first._obj.value = ANSWERS[name]
            return 0

        return call

    def cuPointerGetAttribute(self, value: Any, attribute: int, address: Any) -> int:
        value._obj.value = 0 if attribute == 9 else self.owner(address.value)
        return 0 if address.value and address.value < 0x10000 else 1

    def cuGetErrorName(self, status: int, name: Any) -> int:
        name._obj.value = b"CUDA_ERROR_INVALID_VALUE"
        return 0

    def cuDeviceGet(self, device: Any, ordinal: int) -> int:
        self.devices.add(ordinal)
        return 0

    def cuDeviceGetName(self, name: Any, length: int, device: Any) -> int:
        name.value = GPU.encode()
        return 0

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: Any) -> int:
        value._obj.value = {38: self.l2_bytes, 75: 9, 76: 0}[attribute]
        return 0

    def cuCtxPushCurrent_v2(self, context: Any) -> int:
        self.calls.append(f"push {context.value:x}")
        self.pushed.append(context.value)
        return 0

    def cuCtxPopCurrent_v2(self, context: Any) -> int:
        self.calls.append("pop")
        self.pushed.pop()
        return 0

    def cuCtxGetId(self, context: Any, number: Any) -> int:
        number._obj.value = context.value
        return 0

    def cuModuleLoadData(self, module: Any, image: bytes) -> int:
        self.calls.append("load")
        return 0

    def cuFuncSetAttribute(self, function: Any, attribute: int, value: int) -> int:
        self.optin.append(value)
        return 0

    def cuStreamSynchronize(self, stream: Any) -> int:
        self.calls.append(f"wait for {stream.value}")
        return 0

    def cuCtxSynchronize(self) -> int:
        self.calls.append("wait for all")
        return 0

    def cuStreamGetId(self, stream: Any, number: Any) -> int:
        if stream.value in self.capturing:
            return 900  # CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
        number._obj.value = self.stream_ids.get(stream.value, stream.value or 1)
        return 0

    def cuStreamIsCapturing(self, stream: Any, status: Any) -> int:
        if self._in_force() is None:
            return 201  # CUDA_ERROR_INVALID_CONTEXT
        if not stream.value and self.capturing:
            return 906  # CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
        status._obj.value = stream.value in self.capturing
        return 0

    def cuMemAlloc_v2(self, address: Any, size: Any) -> int:
        if sum(self.memory.values()) + size.value > self.free_bytes:
            return 2
        if self.capturing and not self.relaxed:
            return 900  # CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
        self.allocations += 1
        address._obj.value = self.allocations << 20
        self.memory[address._obj.value] = size.value
        self.calls.append(f"allocate {size.value}")
        return 0

    def cuMemFree_v2(self, address: Any) -> int:
        self.calls.append(f"free {self.memory.pop(address.value)}")
        return 0

    def cuMemsetD32Async(self, address: Any, value: int, words: Any, stream: Any) -> int:
        assert value == 0
        self.zeroed.append((address.value, words.value, stream.value))
        self.calls.append("zero")
        return 0

    def cuMemsetD8Async(self, address: Any, value: int, size: Any, stream: Any) -> int:
        if self._in_force() is None:
            return 201  # CUDA_ERROR_INVALID_CONTEXT
        assert self.memory.get(address.value, size.value) == size.value
        self.now_us += 1000.0
        self.calls.append(f"fill {size.value} on {stream.value}")
        return 0

    def cuEventCreate(self, event: Any, flags: int) -> int:
        event._obj.value = 0xE0 + len(self.events)
        self.events[event._obj.value] = 0.0, False
        return 0

    def cuEventDestroy_v2(self, event: Any) -> int:
        del self.events[event.value]
        return 0

    def cuEventRecord(self, event: Any, stream: Any) -> int:
        self.calls.append(f"event on {stream.value}")
        self.events[event.value] = self.now_us, False
        return 0

    def cuEventQuery(self, event: Any) -> int:
        """Report the last event as ready, unless as many fills precede it as the host needs."""
        self.queried.append((event.value, len(self.launches)))
        if self.query_error:
            return self.query_error
        before = self.calls[: max(at for at, call in enumerate(self.calls) if call.startswith("event"))]
        fills = next((at for at, call in enumerate(reversed(before)) if not call.startswith("fill")), len(before))
        return 600 if fills >= self.host_needs_fills else 0  # CUDA_ERROR_NOT_READY

    def cuEventSynchronize(self, event: Any) -> int:
        self.events = {other: (us, waited or other == event.value) for other, (us, waited) in self.events.items()}
        return 0

    def cuEventElapsedTime(self, milliseconds: Any, before: Any, after: Any) -> int:
        (first_us, _), (last_us, is_over) = self.events[before.value], self.events[after.value]
        milliseconds._obj.value = 1e-3 * (last_us - first_us)
        return 0 if is_over else 600  # CUDA_ERROR_NOT_READY

    def cuCtxSetCurrent(self, context: Any) -> int:
        assert not self.pushed
        self.current = context.value
        return 0

    def cuCtxGetCurrent(self, context: Any) -> int:
        context._obj.value = self._in_force()
        return 0

    def _in_force(self) -> int | None:
        return self.pushed[-1] if self.pushed else self.current

    def cuThreadExchangeStreamCaptureMode(self, mode: Any) -> int:
        self.relaxed = not self.relaxed
        return 0

    def cuStreamGetCaptureInfo_v2(self, stream: Any, status: Any, number: Any, *_: Any) -> int:
        status._obj.value, number._obj.value = 1, self.captures
        return 0

    def launch(self, config: int, function: int, parameters: int, extra: None) -> int:
        if self._in_force() is None:
            return 201  # CUDA_ERROR_INVALID_CONTEXT
        *shape, smem_bytes = (ctypes.c_uint * 7).from_address(config)
        stream = ctypes.c_void_p.from_address(config + 32)
        assert (ctypes.c_uint64 * 2).from_address(config + 40)[:] == [0, 0]  # no attributes
        count = (13 if self.workspaces else 11) + self.has_batches * (6 if self.workspaces else 4)
        pointers = (ctypes.c_void_p * count).from_address(parameters)
        index = ctypes.c_int32 if self.bits == 32 else ctypes.c_int64
        scalar, address = ctypes.c_float, ctypes.c_uint64
        types = [index, index, index, scalar, address, index, address, index, scalar, address, index]
        types += [address] * (len(pointers) - len(types))  # the workspace
        values = [kind.from_address(pointer).value for kind, pointer in zip(types, pointers, strict=True)]
        self.calls.append("launch")
        self.launches.append(
            {"grid": shape[:3], "block": shape[3:], "smem": smem_bytes, "stream": stream.value, "values": values}
        )
        self.now_us += self.takes_us(self.launches[-1])
        return 0


class AnyAddress(RecordingDriver):
    """A driver that takes any address, and has memory enough."""

    def __init__(self) -> None:
        super().__init__()
        self.free_bytes = 1 << 40

    def cuPointerGetAttribute(self, value: Any, attribute: int, address: Any) -> int:
        value._obj.value = 0 if attribute == 9 else 0xC0
        return 0


def cubin(*_: object) -> bytes:
    return b"cubin"


def attach(module: ModuleType, driver: RecordingDriver | None = None, **functions: Any) -> RecordingDriver:
    """Put the module before a driver, which it also has as `driver`, and replace functions of the module."""
    driver = driver or RecordingDriver()
    vars(module).update(cuda=lambda: driver, driver=driver, **functions)
    return driver


def recording(module: ModuleType, **functions: Any) -> RecordingDriver:
    """Put the module before a driver that takes any address, and has memory enough."""
    return attach(module, AnyAddress(), compiled_here=cubin, **functions)


@contextmanager
def lent(module: ModuleType) -> Iterator[ModuleType]:
    """Lend a module that tests share: undo what its borrower replaces of the module and of its classes."""
    own = [one for one in vars(module).values() if isinstance(one, type) and one.__module__ == module.__name__]
    before = [(place, dict(vars(place))) for place in (module, *own)]
    try:
        yield module
    finally:
        for place, names in before:
            for name in vars(place).keys() - names:
                delattr(place, name)
            for name, value in names.items():
                if vars(place)[name] is not value:
                    setattr(place, name, value)
