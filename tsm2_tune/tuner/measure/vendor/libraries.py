"""Search and loading of cuBLAS and cuBLASLt, and translation of their status codes into exceptions."""

from __future__ import annotations

import ctypes
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

from tsm2_tune.errors import ToolMissing

CUBLAS, CUBLASLT = "cuBLAS", "cuBLASLt"
FILES = {CUBLAS: "libcublas", CUBLASLT: "libcublasLt"}
SUFFIXES = (".so.13", ".so.12", ".so.11", ".so")  # newest version first
BESIDE_HOME = ("lib64", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib")  # library folders of a CUDA toolkit
OF_LINKER = ""  # the dynamic linker searches its own path for a name without a folder
IN_WHEELS = "cu*/lib"  # nvidia/cublas/lib until CUDA 12, nvidia/cu13/lib from 13 on

# cublasStatus_t
STATUSES = {
    1: "not initialised",
    3: "no memory",
    7: "invalid value",
    8: "architecture mismatch",
    11: "mapping error",
    13: "execution failed",
    14: "internal error",
    15: "not supported",
}


class CublasError(RuntimeError):
    """Error: a call of cuBLAS or cuBLASLt failed, or the library has no routine for the product."""


def check(status: int, call: str) -> None:
    """Raise CublasError, with the name of the call, unless the status is CUBLAS_STATUS_SUCCESS."""
    if status != 0:
        meant = f" ({STATUSES[status]})" if status in STATUSES else ""
        raise CublasError(f"{call} answers {status}{meant}")


def library(name: str) -> ctypes.CDLL:
    """Load library `name` (CUBLAS or CUBLASLT) from the first folder that contains it. Else raise ToolMissing."""
    for folder in folders():
        for file in (FILES[name] + suffix for suffix in SUFFIXES):
            try:
                return ctypes.CDLL(os.path.join(folder, file))
            except OSError:
                continue
    raise ToolMissing(
        f"{FILES[name]} not found: looked in $CUDA_HOME/lib64, on the library path and in NVIDIA's wheels;"
        " install the CUDA toolkit or the wheel nvidia-cublas"
    )


def folders() -> Iterator[str]:
    """Yield the folders in which to search for a library, in order of preference."""
    homes = (os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH"))
    yield from (os.path.join(home, beside) for home in homes if home for beside in BESIDE_HOME)
    yield OF_LINKER
    yield from (os.path.join("/usr/local/cuda", beside) for beside in BESIDE_HOME)
    for root in _wheels():
        yield from map(str, sorted(Path(root).glob(IN_WHEELS), reverse=True))


def _wheels() -> list[str]:
    """Return the folders of `nvidia`, the namespace package of NVIDIA's wheels, without importing it."""
    try:
        spec = importlib.util.find_spec("nvidia")
    except (ImportError, ValueError):  # a module of this name that is not a package
        return []
    return list(spec.submodule_search_locations or ()) if spec is not None else []


def version_text(version: int) -> str:
    """Return the text of a version number that cublasGetVersion returned, such as 13.1.0 for 130100."""
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"
