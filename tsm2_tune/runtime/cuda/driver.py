"""The CUDA driver API through ctypes. A kernel runs in the CUDA context that owns its arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

from tsm2_tune.runtime.arrays.matrices import LARGEST_ADDRESS, Matrix

OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
CAPTURED_BESIDE = 906  # CUDA_ERROR_STREAM_CAPTURE_IMPLICIT: legacy stream used while another stream is captured
RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
CONTEXT_OF_POINTER, IS_MANAGED, ORDINAL_OF_POINTER = 1, 8, 9  # CU_POINTER_ATTRIBUTE_...
LEGACY_STREAM, PER_THREAD_STREAM = 1, 2  # special handles; 0 is the legacy stream, too


@cache
def cuda() -> Any:
    """Return the driver library, initialised. Raise RuntimeError if there is no driver, or no device."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise RuntimeError("no CUDA driver: libcuda.so.1 not found") from error
    if library.cuInit(0):
        raise RuntimeError("the CUDA driver finds no device")
    return library


def ask_driver(name: str, *arguments: Any, expected: int = 0) -> int:
    """Call the driver function `name` and return its status. Raise RuntimeError unless it is 0 or `expected`."""
    status: int = getattr(cuda(), name)(*arguments)
    if status not in (0, expected):
        raise RuntimeError(f"{name} failed: {error_name(status)}")
    return status


def error_name(status: int) -> str:
    """Return the driver's name of a status, such as CUDA_ERROR_OUT_OF_MEMORY."""
    text = ctypes.c_char_p()
    cuda().cuGetErrorName(status, ctypes.byref(text))
    return (text.value or b"unknown error").decode()


def home(matrix: Matrix) -> tuple[int, int]:
    """Return the handle of the CUDA context that owns the matrix's memory, and the ordinal of its device."""
    if matrix.home is None and matrix.library == "torch":
        ordinal = matrix.array.get_device()
        matrix.home = primary_context(ordinal), ordinal  # PyTorch allocates in primary contexts only
    elif matrix.home is None:
        matrix.home = _home_of_memory(matrix)
    return matrix.home


def _home_of_memory(matrix: Matrix) -> tuple[int, int]:
    ask, address = cuda().cuPointerGetAttribute, ctypes.c_uint64(matrix.address)
    ordinal, context = ctypes.c_int(), ctypes.c_void_p()
    if ask(ctypes.byref(ordinal), ORDINAL_OF_POINTER, address) or ordinal.value < 0:
        managed = ctypes.c_int()
        if not ask(ctypes.byref(managed), IS_MANAGED, address) and managed.value:
            ordinal_of_library = matrix.array.data.device_id if matrix.library == "cupy" else 0
            return primary_context(ordinal_of_library), ordinal_of_library  # managed memory has no device of its own
        raise ValueError(f"{matrix.name}: its address {matrix.address:#x} is not memory of a CUDA device")
    if ask(ctypes.byref(context), CONTEXT_OF_POINTER, address):
        context.value = None
    # Memory from a pool or a mapping has a device but no context: use the primary one.
    return context.value or primary_context(ordinal.value), ordinal.value


def device_handle(ordinal: int) -> ctypes.c_int:
    device = ctypes.c_int()
    ask_driver("cuDeviceGet", ctypes.byref(device), ordinal)
    return device


@cache
def primary_context(ordinal: int) -> int:
    """Return the handle of the device's primary context, and keep the context alive."""
    context = ctypes.c_void_p()
    ask_driver("cuDevicePrimaryCtxRetain", ctypes.byref(context), device_handle(ordinal))
    return int(context.value or 0)


@cache
def device_of(ordinal: int) -> tuple[str, str]:
    """Return the GPU's name and the architecture to compile for, such as "sm_90a"."""
    device, major, minor = device_handle(ordinal), ctypes.c_int(), ctypes.c_int()
    name = ctypes.create_string_buffer(256)
    ask_driver("cuDeviceGetName", name, len(name), device)
    ask_driver("cuDeviceGetAttribute", ctypes.byref(major), 75, device)  # COMPUTE_CAPABILITY_MAJOR
    ask_driver("cuDeviceGetAttribute", ctypes.byref(minor), 76, device)  # COMPUTE_CAPABILITY_MINOR
    suffix = "a" if (major.value, minor.value) == (9, 0) else ""  # with wgmma and other Hopper instructions
    return name.value.decode(), f"sm_{major.value}{minor.value}{suffix}"


@cache
def driver_version() -> str:
    """Return a text with the driver's release (on Linux) and the newest CUDA version that the driver supports."""
    newest = ctypes.c_int()
    ask_driver("cuDriverGetVersion", ctypes.byref(newest))
    try:
        with open("/sys/module/nvidia/version", encoding="ascii") as file:
            return f"{file.read(64).strip()} {newest.value}"
    except (OSError, ValueError):
        return str(newest.value)


@contextmanager
def current_context(context: int) -> Iterator[None]:
    """Make the context current in this thread for the body of `with`."""
    ask_driver("cuCtxPushCurrent_v2", ctypes.c_void_p(context))
    try:
        yield
    finally:
        ask_driver("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


def context_id(context: int) -> int:
    """Return the context's id, which unlike its handle is never reused. Before CUDA 12.0 return the handle."""
    number, ask = ctypes.c_ulonglong(), getattr(cuda(), "cuCtxGetId", None)
    if ask is None:
        return context
    if status := ask(ctypes.c_void_p(context), ctypes.byref(number)):
        raise RuntimeError(f"cuCtxGetId failed: {error_name(status)}")
    return number.value


def owner_id(address: int) -> int | None:
    """Return the id of the CUDA context that owns the memory at this address; None if there is none."""
    context, pointer = ctypes.c_void_p(), ctypes.c_uint64(address)
    status = cuda().cuPointerGetAttribute(ctypes.byref(context), CONTEXT_OF_POINTER, pointer)
    return None if status or not context.value else context_id(context.value)


def stream_handle(stream: Any) -> int:
    """Return the CUstream handle of a stream of PyCUDA, Numba, CuPy or PyTorch, or of a handle. None returns 0."""
    if type(stream) is int and 0 <= stream <= LARGEST_ADDRESS:
        return stream
    for attribute in ("handle", "ptr", "cuda_stream"):
        stream = getattr(stream, attribute, stream)
    stream = getattr(stream, "value", stream)  # Numba's handle is a ctypes pointer
    if stream is None:
        return 0
    if not isinstance(stream, (int, np.integer)):
        raise TypeError(f"stream: expected a stream, its handle or None, got {type(stream).__name__}")
    if not 0 <= stream <= LARGEST_ADDRESS:
        raise ValueError(f"stream: {stream} is not a stream's handle: expected 0 to {LARGEST_ADDRESS}")
    return int(stream)


def stream_id(stream: int) -> int:
    """Return the stream's id, which unlike its handle is never reused. Before CUDA 12.0 return the handle."""
    number = ctypes.c_ulonglong(stream)
    if hasattr(cuda(), "cuStreamGetId"):
        ask_driver("cuStreamGetId", ctypes.c_void_p(stream), ctypes.byref(number))
    return number.value


def is_capturing(stream: int) -> bool:
    """Return whether the stream is being captured.

    For the legacy stream, return whether any stream is: work on it would invalidate that capture. The stream's
    context must be current.
    """
    status, handle = ctypes.c_int(), ctypes.c_void_p(stream)
    beside = ask_driver("cuStreamIsCapturing", handle, ctypes.byref(status), expected=CAPTURED_BESIDE)
    return beside != 0 or status.value != 0


@contextmanager
def relaxed_capture() -> Iterator[None]:
    """Allow this thread to allocate memory and load kernels during a capture, outside of the CUDA graph."""
    mode = ctypes.c_int(RELAXED)
    ask_driver("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
    try:
        yield
    finally:
        ask_driver("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
