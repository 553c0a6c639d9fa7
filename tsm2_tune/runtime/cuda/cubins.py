"""Load kernels into a context: the embedded cubin or, if there is none for this GPU, one compiled here."""

from __future__ import annotations

import base64
import ctypes
import hashlib
import threading
import zlib

from tsm2_tune.runtime.choice.winners import Winner
from tsm2_tune.runtime.cuda.compilers import compiled_here
from tsm2_tune.runtime.cuda.driver import ask_driver, current_context
from tsm2_tune.runtime.module_data import CUBINS, KERNELS

OPTIN_SMEM_BYTES = 47 * 1024  # beyond this dynamic shared memory needs an opt-in; static memory counts, too
MOST_BINARY_BYTES = 1 << 26  # the largest that is unpacked

lock = threading.RLock()  # guards loaded kernels and workspaces
_functions: dict[tuple[int, str, int], ctypes.c_void_p] = {}  # by context, digest and index width
_compiled: dict[
    tuple[str, int, str], bytes | str
] = {}  # by digest, index width and architecture: the cubin, or why there is none


def text_of(winner: Winner) -> str:
    """Return the winner's CUDA. Raise RuntimeError if it is not the text that was tuned and verified."""
    digest, data = KERNELS.get(winner.digest, ("", ""))
    return unpacked(data, digest, f"the text of {winner.config}").decode()


def function_of(context: int, number: int, winner: Winner, bits: int, arch: str) -> ctypes.c_void_p:
    """Return the winner's kernel, loaded into the context of this number."""
    key = (number, winner.digest, bits)
    with lock:
        if key in _functions:
            return _functions[key]
        with current_context(context):
            module, function = ctypes.c_void_p(), ctypes.c_void_p()
            ask_driver("cuModuleLoadData", ctypes.byref(module), cubin_of(winner, bits, arch))
            ask_driver("cuModuleGetFunction", ctypes.byref(function), module, winner.kernel.encode())
            if winner.launch.smem_bytes > OPTIN_SMEM_BYTES:  # 8: MAX_DYNAMIC_SHARED_SIZE_BYTES
                ask_driver("cuFuncSetAttribute", function, 8, winner.launch.smem_bytes)
        _functions[key] = function
        return function


def is_loaded(number: int, winner: Winner, bits: int) -> bool:
    """Return whether the winner's kernel is loaded into the context of this number."""
    return (number, winner.digest, bits) in _functions


def cubin_of(winner: Winner, bits: int, arch: str) -> bytes:
    """Return the winner's cubin for the architecture, embedded or compiled here. Raise RuntimeError if neither is."""
    key = (winner.digest, bits, arch)
    if key in CUBINS:
        digest, data = CUBINS[key]
        return unpacked(data, digest, f"the binary of {winner.config}")
    with lock:
        if key not in _compiled:
            text = text_of(winner)
            try:
                _compiled[key] = compiled_here(text, bits, arch)
            except RuntimeError as error:
                _compiled[key] = f"{winner.config}: this module has no binary for {arch}, and {error}"
        found = _compiled[key]
    if isinstance(found, str):
        raise RuntimeError(found)
    return found


def is_compiled(winner: Winner, bits: int, arch: str) -> bool:
    """Return whether there is a cubin of the winner for the architecture without compiling."""
    key = (winner.digest, bits, arch)
    return key in CUBINS or isinstance(_compiled.get(key), bytes)


def why_not_compiled(winner: Winner, bits: int, arch: str) -> str | None:
    """Return why there is no cubin of the winner for the architecture; None if there is, or one compiles here."""
    if (winner.digest, bits, arch) in CUBINS:
        return None
    try:
        cubin_of(winner, bits, arch)
    except RuntimeError as error:
        return str(error)
    return None


def unpacked(data: str, digest: str, what: str) -> bytes:
    """Decode embedded data of this file. Raise RuntimeError if its SHA-256 is not the exported one."""
    try:
        binary = zlib.decompressobj().decompress(base64.b85decode(data), MOST_BINARY_BYTES)
    except (TypeError, ValueError, zlib.error):
        binary = b""
    if hashlib.sha256(binary).hexdigest() != digest:
        raise RuntimeError(f"{what} does not match its digest: export this module again")
    return binary
