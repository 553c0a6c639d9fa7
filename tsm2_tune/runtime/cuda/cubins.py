"""Load kernels into a CUDA context. Without a cubin for this GPU, a kernel is compiled at run time."""

from __future__ import annotations

import binascii
import ctypes
import lzma
import threading
from functools import lru_cache

from tsm2_tune.runtime.choice.winners import Winner
from tsm2_tune.runtime.cuda.compilers import compiled_here
from tsm2_tune.runtime.cuda.driver import ask_driver, current_context
from tsm2_tune.runtime.module_data import BLOCKS, CUBINS, KERNELS, Place

OPTIN_SMEM_BYTES = 47 * 1024  # more dynamic shared memory may need an opt-in: with static memory the limit is 48 KiB
MOST_BINARY_BYTES = 1 << 26  # largest unpacked size
NOWHERE: Place = ("", -1, 0, 0)

lock = threading.RLock()  # guards loaded kernels and workspaces
_functions: dict[tuple[int, str, int], ctypes.c_void_p] = {}  # (context number, digest, index width) -> CUfunction
_compiled: dict[
    tuple[str, int, str], bytes | str
] = {}  # (digest, index width, architecture) -> the cubin, or the reason why it does not compile


def text_of(winner: Winner) -> str:
    return _part(KERNELS.get(winner.digest, NOWHERE), f"the text of {winner.config}").decode()


def function_of(context: int, number: int, winner: Winner, bits: int, arch: str) -> ctypes.c_void_p:
    """Load the winner's kernel, with indices of `bits`, into the context, unless it is. Return its CUfunction."""
    key = (number, winner.digest, bits)
    loaded = _functions.get(key)
    if loaded is not None:
        return loaded  # without the lock, which another thread holds while it compiles
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
    """Return whether the winner's kernel is loaded into the context with this number, with indices of this width."""
    return (number, winner.digest, bits) in _functions


def cubin_of(winner: Winner, bits: int, arch: str) -> bytes:
    """Return the winner's embedded cubin, or one compiled at run time. Raise RuntimeError if it does not compile."""
    key = (winner.digest, bits, arch)
    if key in CUBINS:
        return _part(CUBINS[key], f"the binary of {winner.config}")
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
    """Return whether a cubin of the winner for the architecture is embedded, or was compiled before."""
    key = (winner.digest, bits, arch)
    return key in CUBINS or isinstance(_compiled.get(key), bytes)


def why_not_compiled(winner: Winner, bits: int, arch: str) -> str | None:
    """Return the reason why there is no cubin of the winner, which is compiled now if none is embedded; else None."""
    if (winner.digest, bits, arch) in CUBINS:
        return None
    try:
        cubin_of(winner, bits, arch)
    except RuntimeError as error:
        return str(error)
    return None


def unpacked(data: str, digest: str, what: str) -> bytes:
    """Decompress data that is embedded in this file. Raise RuntimeError if its SHA-256 is not `digest`."""
    return _checked(_decompressed(data), digest, what)


def _part(place: Place, what: str) -> bytes:
    """Return the text or binary at this place of BLOCKS. Raise RuntimeError if its SHA-256 is wrong."""
    digest, block, start, end = place
    whole = _decompressed(BLOCKS[block]) if 0 <= block < len(BLOCKS) else b""
    return _checked(whole[start:end], digest, what)


def sha256(binary: bytes) -> bytes:
    import hashlib  # here: it loads OpenSSL, which takes longer than all other imports

    return hashlib.sha256(binary).digest()


def _checked(binary: bytes, digest: str, what: str) -> bytes:
    if sha256(binary).hex() != digest:
        raise RuntimeError(f"{what} does not match its digest: export this module again")
    return binary


@lru_cache(maxsize=2)  # a kernel's cubins are in one block
def _decompressed(data: str) -> bytes:
    """Decode and decompress at most MOST_BINARY_BYTES. Return no bytes if the data are damaged."""
    try:
        return lzma.LZMADecompressor(lzma.FORMAT_XZ).decompress(binascii.a2b_base64(data), MOST_BINARY_BYTES)
    except (TypeError, ValueError, lzma.LZMAError):
        return b""
