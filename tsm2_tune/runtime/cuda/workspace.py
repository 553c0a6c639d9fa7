"""The workspace of split-k kernels: device memory for partial sums, and counters for each tile of C.

Launches on one stream run in order, so each stream needs only one workspace. The counters are 0 before and after each
kernel. A CUDA graph has its own workspaces, since the graph may be replayed on any stream.
"""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass
from typing import Any

from tsm2_tune.runtime.arrays.libraries import at_stream, is_torchs, scratch
from tsm2_tune.runtime.cuda.driver import (
    LEGACY_STREAM,
    OUT_OF_MEMORY,
    PER_THREAD_STREAM,
    ask_driver,
    current_context,
    is_capturing,
    relaxed_capture,
    stream_id,
)

Sizes = tuple[int, int]  # bytes of the partials and of the counters
Memory = tuple[tuple[int, int], tuple[Any, ...]]  # addresses of partials and counters; objects that own the memory


@dataclass
class Workspace:
    """The memory for partial sums and counters of a stream's kernels."""

    stream_id: int
    sizes_bytes: Sizes
    addresses: tuple[int, int]
    owners: tuple[Any, ...]  # PyTorch's or CuPy's objects that own the memory; empty: allocated by the driver

    def holds(self, needed_bytes: Sizes) -> bool:
        return self.sizes_bytes[0] >= needed_bytes[0] and self.sizes_bytes[1] >= needed_bytes[1]


workspaces: dict[tuple[int, int, int], Workspace] = {}  # key: context, stream, thread (0 unless per-thread stream)
_of_graphs: dict[tuple[int, int, int], Workspace] = {}  # key: context, stream and capture; never freed


def legacy_key(context: int) -> tuple[int, int, int]:
    """Return the key of the legacy default stream in the dict `workspaces`. `context` is the context's id."""
    return context, LEGACY_STREAM, 0


def workspace_for(context: int, context_number: int, needed_bytes: Sizes, stream: int, array: Any) -> tuple[int, int]:
    """Return the addresses of the stream's partial sums and zeroed counters, allocated now if they are too small.

    PyTorch or CuPy allocates them for its own arrays, else the driver.
    The context must be current, unless the stream is a default stream. The caller must hold `lock` until its launch,
    since another thread may replace the stream's workspace.
    """
    if stream not in (0, LEGACY_STREAM) and is_capturing(stream):
        return _in_a_capture(context_number, needed_bytes, stream, array)
    thread = threading.get_ident() if stream == PER_THREAD_STREAM else 0
    stream_or_legacy = stream or LEGACY_STREAM
    key = (context_number, stream_or_legacy, thread)
    # The handles of other streams are reused, and so are the identifiers of threads that have ended.
    number = stream_or_legacy if stream_or_legacy == LEGACY_STREAM else stream_id(stream)
    found = workspaces.get(key)
    if found is not None and found.stream_id == number and found.holds(needed_bytes):
        return found.addresses
    with current_context(context):
        if found is not None:
            _release(found, stream, number)
            del workspaces[key]
            needed_bytes = (max(needed_bytes[0], found.sizes_bytes[0]), max(needed_bytes[1], found.sizes_bytes[1]))
        made = workspaces[key] = _lasting(needed_bytes, stream, number, array)
    return made.addresses


def _lasting(sizes_bytes: Sizes, stream: int, number: int, array: Any) -> Workspace:
    """Return a new workspace that later launches on the stream use, too.

    For PyTorch's arrays another thread allocates the memory: in this thread PyTorch may use a temporary memory pool,
    as when torch.compile warms up for a CUDA graph.
    """

    def allocate() -> Memory:
        with at_stream(array, stream):
            return _allocated(sizes_bytes, array)

    if not is_torchs(array):
        return _zeroed(sizes_bytes, allocate(), stream, number)
    from concurrent.futures import ThreadPoolExecutor  # here, because it takes 3 ms

    with ThreadPoolExecutor(max_workers=1) as other:
        return _zeroed(sizes_bytes, other.submit(allocate).result(), stream, number)


def _in_a_capture(context: int, needed_bytes: Sizes, stream: int, array: Any) -> tuple[int, int]:
    """Return the addresses of a workspace for a captured launch.

    PyTorch's memory comes from the capture's pool. The driver's is kept until the process ends.
    """
    if is_torchs(array):
        with at_stream(array, stream):
            memory = _allocated(needed_bytes, array)
        return _zeroed(needed_bytes, memory, stream, 0).addresses  # later launches in the graph may reuse it
    status, capture = ctypes.c_int(), ctypes.c_ulonglong()
    ask_driver(
        "cuStreamGetCaptureInfo_v2", ctypes.c_void_p(stream), ctypes.byref(status), ctypes.byref(capture), *[None] * 3
    )
    key = (context, stream, capture.value)
    if key not in _of_graphs or not _of_graphs[key].holds(needed_bytes):
        with relaxed_capture():
            _of_graphs[key] = _zeroed(needed_bytes, _allocated(needed_bytes, None), stream, 0)
    return _of_graphs[key].addresses


def _allocated(sizes_bytes: Sizes, array: Any) -> Memory:
    """Allocate memory for the partial sums and the counters. Raise MemoryError if the device has too little."""
    addresses, owners = list[int](), list[Any]()
    try:
        for size_bytes in sizes_bytes:
            of_library = scratch(array, size_bytes)
            if of_library is None:
                addresses.append(driver_memory(size_bytes))
            else:
                addresses.append(of_library[0])
                owners.append(of_library[1])
    except MemoryError as error:
        if not owners:
            for address in addresses:
                ask_driver("cuMemFree_v2", ctypes.c_uint64(address))
        raise MemoryError(
            f"the GPU has no room for the {sum(sizes_bytes)} bytes in which a kernel splits k: free memory on it,"
            " also what a library's allocator keeps, or tune this shape"
        ) from error
    return (addresses[0], addresses[1]), tuple(owners)


def _zeroed(sizes_bytes: Sizes, memory: Memory, stream: int, number: int) -> Workspace:
    """Return a Workspace in this memory. Its counters are set to 0 by a memset on the stream."""
    addresses, owners = memory
    words = ctypes.c_size_t(sizes_bytes[1] // 4)
    ask_driver("cuMemsetD32Async", ctypes.c_uint64(addresses[1]), 0, words, ctypes.c_void_p(stream))
    return Workspace(number, sizes_bytes, addresses, owners)


def driver_memory(size_bytes: int) -> int:
    """Allocate device memory with cuMemAlloc and return its address. Raise MemoryError if that fails."""
    address = ctypes.c_uint64()
    if ask_driver("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size_bytes), expected=OUT_OF_MEMORY):
        raise MemoryError
    return address.value


def _release(workspace: Workspace, stream: int, number: int) -> None:
    """Wait until no kernel uses the workspace, then free the driver's memory.

    `number` is the id of the stream that has this handle now. Another id than the workspace's means that the
    workspace's stream was destroyed.
    """
    if workspace.stream_id == number:
        ask_driver("cuStreamSynchronize", ctypes.c_void_p(stream))
    else:  # the workspace's stream was destroyed and its handle reused: wait for all work in the context
        ask_driver("cuCtxSynchronize")
    if not workspace.owners:
        for address in workspace.addresses:
            ask_driver("cuMemFree_v2", ctypes.c_uint64(address))
