"""Arrays of libraries that are not there, in memory that nobody reads."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from tests.calls import Call
from tests.fabricated import device_array
from tests.fake_tensors import Cupy, Tensor
from tests.modules import launched_values
from tests.random_calls import TYPES, WORDS
from tests.spelling import spelt
from tsm2_tune.runtime.arrays.batches import packed_strides

OF_TYPESTR = {typestr: f"torch.{WORDS[name]}" for name, typestr in TYPES.items()} | {"<i4": "torch.int32"}


class GPUArray:
    """PyCUDA's, of the memory at an address."""

    def __init__(self, described: Any) -> None:
        self.__cuda_array_interface__ = told = described.__cuda_array_interface__ | {"stream": None}
        self.shape, self.strides, self.dtype = told["shape"], told["strides"], np.dtype(told["typestr"])
        self.gpudata = told["data"][0]


def array_of(kind: str, described: Any, **changes: Any) -> Any:
    """Return the library's array for a description."""
    if kind == "torch":
        return Tensor(described, dtype=OF_TYPESTR[described.__cuda_array_interface__["typestr"]], **changes)
    return described if kind == "interface" else {"cupy": Cupy, "pycuda": GPUArray}[kind](described)


def arrays_of(kind: str, call: Call) -> list[Any]:
    """Return a, b and out of a library for the call."""
    found = []
    for name, shape, strides, at in zip("abc", call.shapes, call.strides, (call.a, call.b, call.c), strict=True):
        along = slice(call.vector == "a", 2 - (call.vector == "b")) if name in (call.vector, "c") else slice(2)
        described = device_array(tuple(shape)[along], tuple(strides)[along], at=at, typestr=TYPES[call.dtype])
        bit = kind == "torch" and name != "c" and call.bits["ab".index(name)]
        found.append(array_of(kind, described, **{"is_conj": lambda: True} if bit else {}))
    return found


SHARED_BATCH = spelt(
    "small:threads=64,kilobytes=8,thread=2x2,stages=2,padding=0,direct=0,min_blocks=2,blocks=16,extents=0x0x0"
)  # whose blocks share a batch


def batch(shape: tuple[int, ...], at: int, strides: tuple[int, ...] = (), **changes: Any) -> Tensor:
    """A float32 tensor; row-major without gaps where no strides, in elements, are given."""
    strides = strides or packed_strides(shape, 1)
    described = device_array(shape, tuple(4 * one for one in strides), at=at)
    return Tensor(described, dtype="torch.float32", **changes)


def values_at(module: ModuleType, *places: int) -> list[Any]:
    """Return what the last launch was given at these places of its arguments."""
    return [launched_values(module)[at] for at in places]
