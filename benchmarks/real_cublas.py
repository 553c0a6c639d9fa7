"""cuBLAS and cuBLASLt as loaded by CuPy: by name, which LD_PRELOAD can redirect, and the real functions."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

MAPS = Path("/proc/self/maps")


class Real:
    """The functions of a library itself, found with `dlvsym`, so that a preloaded library cannot replace them."""

    def __init__(self, library: ctypes.CDLL, version: str) -> None:
        self._find, self._library = ctypes.CDLL(None).dlvsym, library
        self._find.restype, self._find.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p]
        self._version = version.encode()

    def __getattr__(self, name: str) -> Any:
        address = self._find(self._library._handle, name.encode(), self._version)
        if not address:
            raise AttributeError(f"{name} is not in {self._version.decode()}")
        return ctypes.CFUNCTYPE(ctypes.c_int)(address)


def loaded(name: str = "libcublas") -> tuple[ctypes.CDLL, Real]:
    """Return the library that CuPy loaded in this process, by name and as its real functions.

    `name` is "libcublas" or "libcublasLt". Raise LookupError if it is not loaded.
    """
    import cupy

    cupy.cuda.device.get_cublas_handle()
    paths = [line.split()[-1] for line in MAPS.read_text(encoding="utf-8").splitlines() if f"/{name}.so" in line]
    version = re.search(rf"{name}\.so\.\d+", paths[0]) if paths else None
    if version is None:
        raise LookupError(f"CuPy has loaded no {name}.so")
    return ctypes.CDLL(paths[0]), Real(ctypes.CDLL(paths[0]), version[0])
