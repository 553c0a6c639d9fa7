"""The workspace of kernels that split k: partials, which are the sums of each split, and counters for each tile of C.

Launches on one stream follow one another, so that one workspace serves them all. Its counters are 0 between them,
since a kernel leaves them as it finds them. A CUDA graph has workspaces of its own: it may be replayed on any stream.
"""

from __future__ import annotations

import ctypes
import threading
from concurrent.futures import ThreadPoolExecutor
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
Room = tuple[tuple[int, int], tuple[Any, ...]]  # their addresses, and the owners of the memory


@dataclass
class Workspace:
    """A stream's partials and counters."""

    stream_id: int
    sizes_bytes: Sizes
    addresses: tuple[int, int]
    owners: tuple[Any, ...]  # of memory that a library allocated; none: the driver did

    def holds(self, needed_bytes: Sizes) -> bool:
        return self.sizes_bytes[0] >= needed_bytes[0] and self.sizes_bytes[1] >= needed_bytes[1]


workspaces: dict[tuple[int, int, int], Workspace] = {}  # by context, stream, and thread where each has its own
_of_graphs: dict[tuple[int, int, int], Workspace] = {}  # by context, stream and capture: kept for the graphs


def legacy_key(context: int) -> tuple[int, int, int]:
    """Return the key of the legacy stream's workspace in the context of this number."""
    return context, LEGACY_STREAM, 0


def workspace_for(context: int, context_number: int, needed_bytes: Sizes, stream: int, array: Any) -> tuple[int, int]:
    """Addresses of room for the partials and of zeroed counters, of the array's library where that allocates.

    The stream is of this context, which need not be current where the stream is a default one. `lock` is held until
    the launch, since another thread may replace the stream's workspace.
    """
    if stream not in (0, LEGACY_STREAM) and is_capturing(stream):
        return _in_a_capture(context_number, needed_bytes, stream, array)
    thread = threading.get_ident() if stream == PER_THREAD_STREAM else 0
    stream_or_legacy = stream or LEGACY_STREAM
    key = (context_number, stream_or_legacy, thread)
    is_ever = stream_or_legacy in (LEGACY_STREAM, PER_THREAD_STREAM)  # never destroyed
    number = stream_or_legacy if is_ever else stream_id(stream)
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
    """Return a new workspace that is kept. PyTorch may allocate what this thread asks for in a pool that is for a
    while, as when torch.compile warms up for a CUDA graph: another thread asks for it. This one zeroes it, whose
    stream it is.
    """

    def allocate() -> Room:
        with at_stream(array, stream):
            return _allocated(sizes_bytes, array)

    if not is_torchs(array):
        return _zeroed(sizes_bytes, allocate(), stream, number)
    with ThreadPoolExecutor(max_workers=1) as other:
        return _zeroed(sizes_bytes, other.submit(allocate).result(), stream, number)


def _in_a_capture(context: int, needed_bytes: Sizes, stream: int, array: Any) -> tuple[int, int]:
    """Return a workspace that goes into the graph: of PyTorch's pool for it, or kept as long as this process runs."""
    if is_torchs(array):
        with at_stream(array, stream):
            room = _allocated(needed_bytes, array)
        return _zeroed(needed_bytes, room, stream, 0).addresses  # a later one may have the same, after this
    status, capture = ctypes.c_int(), ctypes.c_ulonglong()
    ask_driver(
        "cuStreamGetCaptureInfo_v2", ctypes.c_void_p(stream), ctypes.byref(status), ctypes.byref(capture), *[None] * 3
    )
    key = (context, stream, capture.value)
    if key not in _of_graphs or not _of_graphs[key].holds(needed_bytes):
        with relaxed_capture():
            _of_graphs[key] = _zeroed(needed_bytes, _allocated(needed_bytes, None), stream, 0)
    return _of_graphs[key].addresses


def _allocated(sizes_bytes: Sizes, array: Any) -> Room:
    """Room for a workspace."""
    addresses, owners = list[int](), list[Any]()
    try:
        for size_bytes in sizes_bytes:
            of_library = scratch(array, size_bytes)
            if of_library is None:
                addresses.append(of_driver(size_bytes))
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


def _zeroed(sizes_bytes: Sizes, room: Room, stream: int, number: int) -> Workspace:
    """Return a workspace in the room, its counters zeroed on the stream."""
    addresses, owners = room
    words = ctypes.c_size_t(sizes_bytes[1] // 4)
    ask_driver("cuMemsetD32Async", ctypes.c_uint64(addresses[1]), 0, words, ctypes.c_void_p(stream))
    return Workspace(number, sizes_bytes, addresses, owners)


def of_driver(size_bytes: int) -> int:
    """Return the address of so much memory that the driver allocates."""
    address = ctypes.c_uint64()
    if ask_driver("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size_bytes), expected=OUT_OF_MEMORY):
        raise MemoryError
    return address.value


def _release(workspace: Workspace, stream: int, number: int) -> None:
    """Free the memory once no kernel uses it."""
    if workspace.stream_id == number:
        ask_driver("cuStreamSynchronize", ctypes.c_void_p(stream))
    else:  # a destroyed stream's, which had the same handle: it may still be at work and can no longer be asked
        ask_driver("cuCtxSynchronize")
    if not workspace.owners:
        for address in workspace.addresses:
            ask_driver("cuMemFree_v2", ctypes.c_uint64(address))
