"""cuBLAS and cuBLASLt on the host: what takes their calls as ctypes gives them, and computes by NumPy."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from tsm2_tune.generator.dtypes import DTYPES, PLUS_TIMES
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.measure.vendor.blas import CONJUGATE_TRANSPOSE, NO_TRANSPOSE, TRANSPOSE
from tsm2_tune.tuner.measure.vendor.cublaslt import DESC_TRANSA, DESC_TRANSB

VERSION = 130100
NOT_SUPPORTED = 15
# cudaDataType_t -> how it lies in memory, and what it is computed in
KINDS = {0: "float32", 1: "float64", 2: "float16", 4: "complex64", 5: "complex128", 14: "uint16"}
LETTERS = {"S": 0, "D": 1, "C": 4, "Z": 5}  # BLAS's letters


def _value(argument: Any) -> Any:
    return argument._obj if hasattr(argument, "_obj") else argument


def in_memory(address: int, rows: int, columns: int, leading_dimension: int, kind: str) -> Any:
    """The column-major matrix that lies there; of bfloat16 its bits, as uint16."""
    dtype = np.dtype(kind)
    size = (leading_dimension * (columns - 1) + rows) * dtype.itemsize
    flat = np.frombuffer(memoryview((ctypes.c_char * size).from_address(address)), dtype)
    return np.lib.stride_tricks.as_strided(
        flat, (rows, columns), (dtype.itemsize, leading_dimension * dtype.itemsize)
    )


def read(matrix: Any, operation: int) -> Any:
    """Return a matrix in memory as BLAS reads it, in at least twice its precision."""
    if matrix.dtype == np.uint16:  # bfloat16
        matrix = (matrix.astype(np.uint32) << 16).view(np.float32)
    wide = matrix.astype(np.complex128 if np.iscomplexobj(matrix) else np.float64)
    return {NO_TRANSPOSE: wide, TRANSPOSE: wide.T, CONJUGATE_TRANSPOSE: wide.conj().T}[operation]


def write(target: Any, values: Any) -> None:
    """Round the values to the type in memory."""
    if target.dtype == np.uint16:
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
        target[:] = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    else:
        target[:] = values


class FakeLibrary:
    """Either library, which leaves `missing` products out of each sum and answers `declined` calls by a refusal."""

    def __init__(self, missing: int = 0, declined: tuple[str, ...] = (), algorithms: int = 3) -> None:
        self.missing, self.declined, self.algorithms = missing, declined, algorithms
        self.calls: list[str] = []
        self.objects: dict[int, Any] = {}
        self.cublasLtGetVersion = _Version()

    def __getattr__(self, name: str) -> Callable[..., int]:
        """The call of this name, counted."""
        if not name.startswith("cublas"):
            raise AttributeError(name)

        def call(*arguments: Any) -> int:
            self.calls.append(name)
            return NOT_SUPPORTED if name in self.declined else self._answer(name, *map(_value, arguments))

        return call

    def open_objects(self) -> int:
        """Handles and descriptors that were made and not given back."""
        made = sum(name.removesuffix("_v2").endswith("Create") for name in self.calls)
        return made - sum(name.removesuffix("_v2").endswith("Destroy") for name in self.calls)

    def _answer(self, name: str, *arguments: Any) -> int:
        if name.startswith("cublasLt"):
            self._answer_lt(name.removeprefix("cublasLt"), *arguments)
        elif name == "cublasGetVersion_v2":
            arguments[1].value = VERSION
        elif name == "cublasGemmEx":
            _, ta, tb, m, n, k, _, a, kind, lda, b, _, ldb, _, c, _, ldc, *_ = arguments
            self._gemm(kind, ta, tb, m, n, k, a, lda, b, ldb, c, ldc)
        elif name.endswith("gemm_v2"):
            _, ta, tb, m, n, k, _, a, lda, b, ldb, _, c, ldc = arguments
            self._gemm(LETTERS[name[6]], ta, tb, m, n, k, a, lda, b, ldb, c, ldc)
        elif name.endswith("gemv_v2"):
            _, ta, rows, columns, _, a, lda, b, apart_b, _, c, apart_c = arguments
            kind, m, k = KINDS[LETTERS[name[6]]], *((rows, columns) if ta == NO_TRANSPOSE else (columns, rows))
            vector = read(in_memory(b.value, 1, k, apart_b, kind), TRANSPOSE)
            matrix = read(in_memory(a.value, rows, columns, lda, kind), ta)
            write(in_memory(c.value, 1, m, apart_c, kind), (matrix @ vector).T)
        elif name.endswith(("syrk_v2", "herk_v2")):
            _, _, operation, n, k, _, x, ldx, _, c, ldc = arguments
            kind = KINDS[LETTERS[name[6]]]
            shape = (n, k) if operation == NO_TRANSPOSE else (k, n)
            first = read(in_memory(x.value, *shape, ldx, kind), operation)[:, : k - self.missing]
            target, lower = in_memory(c.value, n, n, ldc, kind), np.tri(n) == 1
            target[lower] = (first @ first.conj().T)[lower]
        return 0

    def _gemm(self, number: int, ta: int, tb: int, *rest: Any) -> None:
        m, n, k, a, lda, b, ldb, c, ldc = rest
        kind = KINDS[number]
        first = read(in_memory(a.value, *((m, k) if ta == NO_TRANSPOSE else (k, m)), lda, kind), ta)
        second = read(in_memory(b.value, *((k, n) if tb == NO_TRANSPOSE else (n, k)), ldb, kind), tb)
        kept = k - self.missing
        write(in_memory(c.value, m, n, ldc, kind), first[:, :kept] @ second[:kept])

    def _answer_lt(self, name: str, *arguments: Any) -> None:
        if name.endswith("Create") and name != "Create":
            arguments[0].value = len(self.objects) + 1
            self.objects[arguments[0].value] = [one.value if hasattr(one, "value") else one for one in arguments[1:]]
        elif name == "MatmulDescSetAttribute" and arguments[1] in (DESC_TRANSA, DESC_TRANSB):
            self.objects[arguments[0].value].append(arguments[2].value)
        elif name == "MatmulAlgoGetHeuristic":
            *_, results, found = arguments
            for place, result in enumerate(results[: self.algorithms]):
                result.algorithm.words[0] = place
            found.value = self.algorithms
        elif name == "Matmul":
            _, operation, _, a, of_a, b, of_b, _, c, of_c, *_ = arguments
            (kind, _, _, lda), (_, _, _, ldb), (_, m, n, ldc) = (
                self.objects[one.value] for one in (of_a, of_b, of_c)
            )
            _, _, ta, tb = self.objects[operation.value]
            rows, columns = self.objects[of_a.value][1:3]
            self._gemm(kind, ta, tb, m, n, columns if ta == NO_TRANSPOSE else rows, a, lda, b, ldb, c, ldc)


class _Version:
    restype: Any = None

    def __call__(self) -> int:
        return VERSION


def opened(monkeypatch: Any, cublas: FakeLibrary, cublaslt: FakeLibrary) -> None:
    """Have these stand for the libraries."""
    for name, library in {"cublas": cublas, "cublaslt": cublaslt}.items():
        monkeypatch.setattr(f"tsm2_tune.tuner.measure.vendor.{name}.library", lambda _, library=library: library)


REAL_OPS = ("nn", "tn", "nt", "tt", "ttt", "nnt", "ntt", "tx", "nxt", "nx", "txt")
COMPLEX_OPS = ("nn", "cn", "nc", "cc", "ct", "jnt", "tjt", "nnt", "cx", "jxt", "tx", "nxt")
PRODUCTS = [
    *(Problem(5, 5 if "x" in op else 3, 70, "f64", op) for op in REAL_OPS),
    *(Problem(5, 5 if "x" in op else 3, 70, "c128", op) for op in COMPLEX_OPS),
    *(Problem(6, 4, 50, name, "tn") for name, dtype in DTYPES.items() if dtype.semiring is PLUS_TIMES),
    *(Problem(50, 1, 30, "f32", op) for op in ("nn", "tn", "tt", "ntt")),
    *(Problem(50, 1, 30, "c64", op) for op in ("cn", "nnt")),
    Problem(4, 4, 30, "f32", "tx"),
    Problem(4, 4, 30, "c64", "cx"),
]
