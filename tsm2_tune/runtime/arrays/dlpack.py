"""Read DLPack capsules: for JAX's arrays, and for device arrays without `__cuda_array_interface__`.

A capsule is released as soon as it is read: the caller's array keeps the memory alive.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import numpy as np

NEWEST_VERSION = (1, 0)  # the version to request: the first with a read-only flag
CUDA_DEVICES = (2, 13)  # types of devices: kDLCUDA, kDLCUDAManaged
READ_ONLY = 1  # DLPACK_FLAG_BITMASK_READ_ONLY
LEGACY_IN_DLPACK = 1  # the legacy default stream; DLPack does not allow 0
KINDS_IN_DLPACK = {
    0: "<i",
    1: "<u",
    2: "<f",
    4: "<V",
    5: "<c",
}  # DLDataTypeCode -> beginning of the typestr; other codes become "|V", for which there is no kernel
TYPE_OF_BFLOAT16 = "<V2"


class DescribedTensor(ctypes.Structure):
    """DLPack's struct DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("dimensions", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),  # in elements; NULL: row-major
        ("byte_offset", ctypes.c_uint64),
    )


class VersionedTensor(ctypes.Structure):
    """DLPack 1.x's struct DLManagedTensorVersioned."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("owner", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", DescribedTensor),
    )


_speaking: dict[type, bool] = {}  # type of array -> result of `speaks_dlpack`


def speaks_dlpack(array: object) -> bool:
    """Return whether this runtime reads the array through DLPack.

    JAX arrays are read through DLPack. Other arrays that support DLPack are, too, unless they are NumPy arrays or
    have `__cuda_array_interface__`.
    """
    kind = type(array)
    found = _speaking.get(kind)
    if found is None:
        speaks = hasattr(kind, "__dlpack__") and hasattr(kind, "__dlpack_device__")
        is_jaxs = issubclass(kind, getattr(sys.modules.get("jax"), "Array", ()))
        by_another = hasattr(kind, "__cuda_array_interface__") or issubclass(kind, np.ndarray)
        found = _speaking[kind] = speaks and (is_jaxs or not by_another)
    return found


def dlpack_interface(array: Any) -> dict[str, Any] | None:
    """Return the memory as a dict like `__cuda_array_interface__`; None if it is not in CUDA device memory.

    The array's library makes the legacy stream wait for pending work on the array.
    """
    if array.__dlpack_device__()[0] not in CUDA_DEVICES:
        return None
    capsule = capsule_of(array, LEGACY_IN_DLPACK)
    name = _capsule_name(capsule)
    if name == b"dltensor_versioned":
        versioned = VersionedTensor.from_address(_capsule_pointer(capsule, name))
        if versioned.major != NEWEST_VERSION[0]:
            raise ValueError(
                f"its DLPack has version {versioned.major}.{versioned.minor}, expected {NEWEST_VERSION[0]}"
            )
        tensor, read_only = versioned.tensor, bool(versioned.flags & READ_ONLY)
    elif name == b"dltensor":  # before DLPack 1.0, without a read-only flag
        tensor, read_only = DescribedTensor.from_address(_capsule_pointer(capsule, name)), True
    else:
        raise ValueError(f"its __dlpack__ gives a capsule of {name!r}, expected b'dltensor'")
    size = tensor.bits * tensor.lanes // 8
    kind = KINDS_IN_DLPACK.get(tensor.code, "|V") if tensor.lanes == 1 else "|V"
    return {
        "shape": tuple(tensor.shape[: tensor.dimensions]),
        "strides": tuple(size * elements for elements in tensor.strides[: tensor.dimensions])
        if tensor.strides
        else None,
        "typestr": f"{kind}{size}",
        "data": ((tensor.data or 0) + tensor.byte_offset, read_only),
    }


def capsule_of(array: Any, stream: int) -> Any:
    """Return the array's DLPack capsule. Its library makes the stream wait for pending work on the array."""
    try:
        return array.__dlpack__(stream=stream, max_version=NEWEST_VERSION)
    except TypeError:  # a library from before DLPack 1.0
        return array.__dlpack__(stream=stream)


def let_wait(name: str, array: Any, stream: int) -> None:
    """Make the stream wait for pending work on the array. Raise RuntimeError if its library refuses."""
    try:
        capsule_of(array, stream or LEGACY_IN_DLPACK)
    except Exception as error:  # each library raises its own type
        raise RuntimeError(f"{name}: its __dlpack__ synchronizes no stream: {error}") from error


def _capsule_name(capsule: Any) -> bytes | None:
    """Return the name of the capsule. Raise ValueError if the object is not a capsule."""
    get_name = ctypes.pythonapi.PyCapsule_GetName
    get_name.restype, get_name.argtypes = ctypes.c_char_p, (ctypes.py_object,)
    found: bytes | None = get_name(capsule)
    return found


def _capsule_pointer(capsule: Any, name: bytes) -> int:
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    return int(get_pointer(capsule, name) or 0)
