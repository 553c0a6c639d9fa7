"""CuPy whose arrays are in the host's memory, and whose products are NumPy's."""

from __future__ import annotations

import contextlib
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np


class Ndarray:
    """An array of CuPy's, as far as an exported module asks it; `held` is NumPy's in the same memory."""

    def __init__(self, held: Any, device: int = 0) -> None:
        self.held, self.number = held, device
        self.shape, self.strides, self.dtype, self.ndim = held.shape, held.strides, held.dtype, held.ndim
        self._c_contiguous = held.flags.c_contiguous
        interface = held.__array_interface__
        self.data = SimpleNamespace(ptr=interface["data"][0], device_id=device)
        told = {"strides": held.strides, "version": 3}
        self.__cuda_array_interface__ = {name: interface[name] for name in ("shape", "typestr", "data")} | told

    def reshape(self, shape: Any) -> Ndarray:
        found = self.held.reshape(shape)
        assert np.shares_memory(found, self.held)
        return Ndarray(found, self.number)

    @property
    def device(self) -> Any:
        return contextlib.nullcontext()


class Cupy(ModuleType):
    """CuPy; `multiplied` counts the products that it computed itself."""

    ndarray = Ndarray

    def __init__(self) -> None:
        super().__init__("cupy")
        self.multiplied = 0
        stream = SimpleNamespace(null=contextlib.nullcontext())
        here, at_0 = SimpleNamespace(getDevice=lambda: 0), SimpleNamespace(ptr=0)
        self.cuda = SimpleNamespace(get_current_stream=lambda number: at_0, runtime=here, Stream=stream)

    def matmul(self, a: Any, b: Any, *, out: Any = None, **named: Any) -> Any:
        self.multiplied += 1
        for x in (a, b, out):
            if not isinstance(x, Ndarray | None):
                raise TypeError(f"Unsupported type {type(x)}")
            if x is not None and x.number != 0:
                raise ValueError("Array device must be same as the current device")
        found = np.matmul(a.held, b.held, **named) if out is None else np.matmul(a.held, b.held, out.held, **named)
        return Ndarray(np.asarray(found, order="C")) if out is None else out

    def empty(self, shape: Any, dtype: Any, order: str = "C") -> Ndarray:
        return Ndarray(np.full(shape, np.nan, dtype, order=order))  # type: ignore[call-overload]
