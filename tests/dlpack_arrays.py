"""Arrays of a library that describes them by DLPack alone, as if the host's memory were a GPU's."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.fake_tensors import DlTensor

CUDA, CPU, MANAGED = 2, 1, 13
READ_ONLY, COPIED = 1, 2  # flags
CODES = {"f": 2, "c": 5, "i": 0, "V": 4}  # V: bfloat16
DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
DESTRUCTOR = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Managed(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = (("tensor", DlTensor), ("owner", ctypes.c_void_p), ("deleter", DELETER))


class Versioned(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("owner", ctypes.c_void_p),
        ("deleter", DELETER),
        ("flags", ctypes.c_uint64),
        ("tensor", DlTensor),
    )


class Exported:
    """An array over `held`, of this version of DLPack; `streams` are those that were to wait, `given_back` counts."""

    def __init__(
        self, held: Any, *, version: tuple[int, int] | None = (1, 0), read_only: bool = False, **told: Any
    ) -> None:
        self.held, self.version, self.read_only, self.told = held, version, read_only, told
        self.device, self.streams, self.given_back = "cuda:0", list[int](), 0
        self.dtype = held.dtype

    @property
    def flags(self) -> int:
        return int(self.told.get("flags", READ_ONLY if self.read_only else 0))

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.told.get("device_type", CUDA), 0

    def __dlpack__(self, **asked: Any) -> Any:
        if self.version is None and "max_version" in asked:
            raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
        if asked["stream"] in self.told.get("refuses", ()):
            raise BufferError(f"no stream {asked['stream']}")
        self.streams.append(asked["stream"])
        managed = Managed() if self.version is None else Versioned(*self.version, flags=self.flags)
        self._describe(managed.tensor)
        name = b"dltensor" if self.version is None else b"dltensor_versioned"
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        self.kept = managed, name, DESTRUCTOR(self._give_back)
        return new(ctypes.addressof(managed), name, ctypes.cast(self.kept[2], ctypes.c_void_p))

    def _describe(self, tensor: Any) -> None:
        held, size = self.held, self.held.itemsize
        offset = self.told.get("byte_offset", 0)
        tensor.data, tensor.byte_offset = held.ctypes.data - offset, offset
        tensor.device_type, tensor.dimensions, tensor.lanes = self.told.get("device_type", CUDA), held.ndim, 1
        tensor.code, tensor.bits = CODES[held.dtype.kind], 8 * size
        tensor.lanes = self.told.get("lanes", 1)
        self.extents = (ctypes.c_int64 * held.ndim)(*held.shape)
        self.steps = (ctypes.c_int64 * held.ndim)(*[step // size for step in held.strides])
        tensor.shape = self.extents
        if not self.told.get("is_dense"):
            tensor.strides = self.steps

    def _give_back(self, capsule: int | None) -> None:
        self.given_back += 1


class Standard(Exported):
    """The same of a library that follows the array API standard, and makes such arrays itself."""

    def __array_namespace__(self) -> Any:
        def empty(shape: Any, *, dtype: Any, device: Any) -> Standard:
            assert device == self.device
            return Standard(np.full(shape, np.nan, dtype), read_only=self.read_only)

        def permute_dims(array: Standard, axes: tuple[int, ...]) -> Standard:
            return Standard(array.held.transpose(axes), read_only=array.read_only)

        return SimpleNamespace(empty=empty, permute_dims=permute_dims)
