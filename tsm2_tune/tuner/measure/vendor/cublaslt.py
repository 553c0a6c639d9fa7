"""Calls of cuBLASLt through ctypes: a handle, and the algorithms that its heuristic returns for a product."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from tsm2_tune.tuner.device.interface import Buffer, Device
from tsm2_tune.tuner.measure.vendor.blas import Gemm, gemm_of, scalar_of
from tsm2_tune.tuner.measure.vendor.libraries import CUBLASLT, check, library
from tsm2_tune.tuner.verify.operands import Operands

ALGORITHMS = 32  # requested number; on an H200 the heuristic returned 1 to 8 for the benchmarks' products
MATMUL = "cublasLtMatmul"
MOST_ALIGNMENT = 256  # bytes: what the heuristic assumes by default

# cublasLtMatmulDescAttributes_t
DESC_TRANSA, DESC_TRANSB = 3, 4
# cublasLtMatrixLayoutAttribute_t
LAYOUT_BATCH_COUNT, LAYOUT_STRIDED_BATCH_OFFSET = 5, 6
# cublasLtMatmulPreferenceAttributes_t
PREF_MAX_WORKSPACE_BYTES = 1
PREF_MIN_ALIGNMENT_BYTES = {"a": 5, "b": 6, "c": 7, "d": 8}


class Algorithm(ctypes.Structure):
    """The C struct cublasLtMatmulAlgo_t."""

    _fields_ = (("words", ctypes.c_uint64 * 8),)


class HeuristicResult(ctypes.Structure):
    """The C struct cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", Algorithm),
        ("workspace_bytes", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


def alignment(address: int) -> int:
    """Return the alignment of an address: the largest power of two that divides it, at most MOST_ALIGNMENT."""
    return min(address & -address, MOST_ALIGNMENT) if address else MOST_ALIGNMENT


class CublasLt:
    """A cuBLASLt handle in the current CUDA context, with a workspace and a stream."""

    def __init__(self, device: Device, workspace_bytes: int) -> None:
        """Create the handle and allocate the workspace.

        Raise ToolMissing if cuBLASLt is missing, CublasError if cuBLASLt does not support the device, MemoryError if
        the workspace does not fit in memory.
        """
        self._library = library(CUBLASLT)
        self._library.cublasLtGetVersion.restype = ctypes.c_size_t
        self.version = int(self._library.cublasLtGetVersion())
        self._handle = ctypes.c_void_p()
        check(self._library.cublasLtCreate(ctypes.byref(self._handle)), "cublasLtCreate")
        try:
            self._workspace: Buffer = device.allocate(workspace_bytes)
        except MemoryError:
            self._library.cublasLtDestroy(self._handle)
            raise

    def close(self) -> None:
        """Destroy the handle and free the workspace."""
        self._library.cublasLtDestroy(self._handle)
        self._workspace.free()

    def plan(self, operands: Operands) -> Plan:
        """Return a Plan of C = A B on the operands' buffers. Raise CublasError if BLAS has no GEMM for it."""
        return Plan(self._library, self._handle, self._workspace, gemm_of(operands))


class Plan:
    """The cuBLASLt descriptors of one product C = A B. `free` destroys them."""

    def __init__(self, lib: ctypes.CDLL, handle: ctypes.c_void_p, workspace: Buffer, gemm: Gemm) -> None:
        self._library, self._handle, self._workspace, self._gemm = lib, handle, workspace, gemm
        self._alpha, self._beta = scalar_of(gemm.element, 1.0), scalar_of(gemm.element, 0.0)
        self._made: list[tuple[str, ctypes.c_void_p]] = []
        element = gemm.element
        self._operation = self._create("MatmulDesc", element.compute_type, element.scale_type)
        for attribute, operation in ((DESC_TRANSA, gemm.operation_a), (DESC_TRANSB, gemm.operation_b)):
            self._set("MatmulDesc", self._operation, attribute, ctypes.c_int32(operation))
        self._a = self._layout(*gemm.stored_a, gemm.lda, gemm.stride_a)
        self._b = self._layout(*gemm.stored_b, gemm.ldb, gemm.stride_b)
        self._c = self._layout(gemm.m, gemm.n, gemm.ldc, gemm.stride_c)
        self._preference = self._create("MatmulPreference")
        room = ctypes.c_uint64(workspace.size_bytes)
        self._set("MatmulPreference", self._preference, PREF_MAX_WORKSPACE_BYTES, room)
        for name, address in {"a": gemm.a, "b": gemm.b, "c": gemm.c, "d": gemm.c}.items():
            least = ctypes.c_uint32(alignment(address))
            self._set("MatmulPreference", self._preference, PREF_MIN_ALIGNMENT_BYTES[name], least)

    def heuristic(self) -> tuple[HeuristicResult, ...]:
        """Return the heuristic's algorithms that need at most this handle's workspace, best first."""
        results = (HeuristicResult * ALGORITHMS)()
        found = ctypes.c_int()
        layouts = (self._a, self._b, self._c, self._c)
        status = self._library.cublasLtMatmulAlgoGetHeuristic(
            self._handle, self._operation, *layouts, self._preference, ALGORITHMS, results, ctypes.byref(found)
        )
        if status != 0:
            return ()
        usable = (result for result in results[: found.value] if result.state == 0)
        return tuple(result for result in usable if result.workspace_bytes <= self._workspace.size_bytes)

    def launch(self, result: HeuristicResult) -> Callable[[], None]:
        """Return a function that launches the product with an algorithm, and raises CublasError if the call fails."""
        gemm = self._gemm
        c = ctypes.c_void_p(gemm.c)
        arguments = (
            self._handle,
            self._operation,
            ctypes.byref(self._alpha),
            *(ctypes.c_void_p(gemm.a), self._a),
            *(ctypes.c_void_p(gemm.b), self._b),
            ctypes.byref(self._beta),
            *(c, self._c),
            *(c, self._c),
            ctypes.byref(result.algorithm),
            ctypes.c_void_p(self._workspace.address),
            ctypes.c_size_t(result.workspace_bytes),
            ctypes.c_void_p(0),  # the default stream
        )
        call = self._library.cublasLtMatmul

        def start() -> None:
            check(call(*arguments), MATMUL)

        return start

    def free(self) -> None:
        for kind, thing in self._made:
            getattr(self._library, f"cublasLt{kind}Destroy")(thing)
        self._made = []

    def _layout(self, rows: int, columns: int, leading_dimension: int, stride: int) -> ctypes.c_void_p:
        extents = (ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(leading_dimension))
        layout = self._create("MatrixLayout", self._gemm.element.data_type, *extents)
        if self._gemm.batch > 1:
            self._set("MatrixLayout", layout, LAYOUT_BATCH_COUNT, ctypes.c_int32(self._gemm.batch))
            self._set("MatrixLayout", layout, LAYOUT_STRIDED_BATCH_OFFSET, ctypes.c_int64(stride))
        return layout

    def _create(self, kind: str, *arguments: Any) -> ctypes.c_void_p:
        thing, name = ctypes.c_void_p(), f"cublasLt{kind}Create"
        check(getattr(self._library, name)(ctypes.byref(thing), *arguments), name)
        self._made.append((kind, thing))
        return thing

    def _set(self, kind: str, thing: ctypes.c_void_p, attribute: int, value: Any) -> None:
        name, size = f"cublasLt{kind}SetAttribute", ctypes.c_size_t(ctypes.sizeof(value))
        check(getattr(self._library, name)(thing, attribute, ctypes.byref(value), size), name)
