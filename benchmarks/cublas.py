"""cuBLAS through ctypes: the opponent."""

from __future__ import annotations

import ctypes
import site
from pathlib import Path

from tsm2_tune.errors import ToolMissing
from tsm2_tune.tuner.operands import Operands

NAMES = ("libcublas.so.13", "libcublas.so.12", "libcublas.so.11", "libcublas.so")
TOOLKITS = ("/usr/local/cuda/lib64", "/usr/local/cuda/targets/x86_64-linux/lib")
NO_TRANSPOSE = 0  # CUBLAS_OP_N


class Cublas:
    """A cuBLAS handle in the current context, with the library's default algorithm and math mode."""

    def __init__(self) -> None:
        self._library = _library()
        self._handle = ctypes.c_void_p()
        self._check(self._library.cublasCreate_v2(ctypes.byref(self._handle)), "cublasCreate")
        version = ctypes.c_int()
        self._check(self._library.cublasGetVersion_v2(self._handle, ctypes.byref(version)), "cublasGetVersion")
        self.version = version.value

    def gemm(self, operands: Operands) -> None:
        """Start C = A B on the operands as they lie now."""
        problem = operands.problem
        scalar = {"f32": ctypes.c_float, "f64": ctypes.c_double}[problem.dtype_name]
        call = {"f32": self._library.cublasSgemm_v2, "f64": self._library.cublasDgemm_v2}[problem.dtype_name]
        alpha, beta = scalar(1.0), scalar(0.0)
        status = call(
            self._handle,
            NO_TRANSPOSE,
            NO_TRANSPOSE,
            problem.m,
            problem.n,
            problem.k,
            ctypes.byref(alpha),
            ctypes.c_void_p(operands.a.address),
            operands.a.filling.leading_dimension,
            ctypes.c_void_p(operands.b.address),
            operands.b.filling.leading_dimension,
            ctypes.byref(beta),
            ctypes.c_void_p(operands.c.address),
            operands.c.filling.leading_dimension,
        )
        self._check(status, "cublasGemm")

    @staticmethod
    def _check(status: int, call: str) -> None:
        if status != 0:
            raise RuntimeError(f"{call} answers {status}")


def _library() -> ctypes.CDLL:
    wheels = [str(path) for root in site.getsitepackages() for path in Path(root).glob("nvidia/*/lib")]
    for folder in ("", *TOOLKITS, *wheels):
        for name in NAMES:
            try:
                return ctypes.CDLL(str(Path(folder, name)) if folder else name)
            except OSError:
                continue
    raise ToolMissing("cuBLAS not found: looked on the library path, in the CUDA toolkit and in NVIDIA's wheels")
