"""cuBLASLt through ctypes: the opponent that may choose, the fastest of the algorithms that its heuristic names."""

from __future__ import annotations

import ctypes
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.cublas import CublasError, Gemm, check, gemm_of, library
from tsm2_tune.tuner.device import Buffer, Device
from tsm2_tune.tuner.operands import Operands

ALGORITHMS = 32  # asked of the heuristic, which has returned 1 to 8 for the products of the bench on an H200
WORKSPACE_BYTES = 64 * 2**20  # twice what cuBLAS itself takes on Hopper
SHORT_SAMPLES = 3  # of each algorithm, to find the one that is then measured in turns with the others
HOPELESS = 2.0  # an algorithm whose first sample is this many times the best median gets no more samples
MOST_ALIGNMENT = 256  # bytes: what the heuristic assumes unless it is told otherwise

# cublasLtMatmulDescAttributes_t
DESC_TRANSA, DESC_TRANSB = 3, 4
# cublasLtMatmulPreferenceAttributes_t
PREF_MAX_WORKSPACE_BYTES = 1
PREF_MIN_ALIGNMENT_BYTES = {"a": 5, "b": 6, "c": 7, "d": 8}


class Algorithm(ctypes.Structure):
    """cublasLtMatmulAlgo_t."""

    _fields_ = (("words", ctypes.c_uint64 * 8),)


class HeuristicResult(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", Algorithm),
        ("workspace_bytes", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


@dataclass(frozen=True, slots=True)
class Fastest:
    """The best of the algorithms, and how many could be timed."""

    launch: Callable[[], None]
    median_us: float
    timed: int


def alignment(address: int) -> int:
    """The largest power of two, in bytes, that divides the address, as far as the heuristic cares."""
    return min(address & -address, MOST_ALIGNMENT) if address else MOST_ALIGNMENT


class CublasLt:
    """A cuBLASLt handle in the current context, with a workspace."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._library = library("libcublasLt")
        self._library.cublasLtGetVersion.restype = ctypes.c_size_t
        self.version = int(self._library.cublasLtGetVersion())
        self._handle = ctypes.c_void_p()
        check(self._library.cublasLtCreate(ctypes.byref(self._handle)), "cublasLtCreate")
        self._workspace: Buffer = device.allocate(WORKSPACE_BYTES)

    def plan(self, operands: Operands) -> Plan:
        """The product on the operands as they lie now. CublasError where BLAS has none."""
        return Plan(self._library, self._handle, self._workspace, gemm_of(operands))

    def fastest(self, plan: Plan) -> Fastest | None:
        """The algorithm of the least median, a few samples each with a cold cache; None where none runs."""
        best: Fastest | None = None
        timed = 0
        for result in plan.heuristic():
            launch = plan.launch(result)
            try:
                launch()
            except CublasError:  # the heuristic names algorithms that then decline
                continue
            self._device.synchronise()
            timed += 1
            samples = [self._device.time_us(launch)]
            if best is not None and samples[0] > HOPELESS * best.median_us:
                continue
            samples += [self._device.time_us(launch) for _ in range(SHORT_SAMPLES - 1)]
            median_us = statistics.median(samples)
            if best is None or median_us < best.median_us:
                best = Fastest(launch, median_us, timed)
        return Fastest(best.launch, best.median_us, timed) if best else None


class Plan:
    """A product's descriptors. Give them back with `free`."""

    def __init__(self, lib: ctypes.CDLL, handle: ctypes.c_void_p, workspace: Buffer, gemm: Gemm) -> None:
        self._library, self._handle, self._workspace, self._gemm = lib, handle, workspace, gemm
        self._alpha, self._beta = gemm.scalar(1.0), gemm.scalar(0.0)
        self._made: list[tuple[str, ctypes.c_void_p]] = []
        element = gemm.element
        self._operation = self._create("MatmulDesc", element.compute_type, element.scale_type)
        for attribute, operation in ((DESC_TRANSA, gemm.operation_a), (DESC_TRANSB, gemm.operation_b)):
            self._set("MatmulDesc", self._operation, attribute, ctypes.c_int32(operation))
        self._a = self._layout(*gemm.stored_a, gemm.lda)
        self._b = self._layout(*gemm.stored_b, gemm.ldb)
        self._c = self._layout(gemm.m, gemm.n, gemm.ldc)
        self._preference = self._create("MatmulPreference")
        room = ctypes.c_uint64(workspace.size_bytes)
        self._set("MatmulPreference", self._preference, PREF_MAX_WORKSPACE_BYTES, room)
        for name, address in {"a": gemm.a, "b": gemm.b, "c": gemm.c, "d": gemm.c}.items():
            least = ctypes.c_uint32(alignment(address))
            self._set("MatmulPreference", self._preference, PREF_MIN_ALIGNMENT_BYTES[name], least)

    def heuristic(self) -> tuple[HeuristicResult, ...]:
        """The algorithms that should suit, best first, as many as cuBLASLt has: none where it has no heuristic."""
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
        """What starts the product with this algorithm. CublasError, when started, where that declines."""
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
            ctypes.c_void_p(None),  # the default stream
        )
        call = self._library.cublasLtMatmul

        def start() -> None:
            check(call(*arguments), "cublasLtMatmul")

        return start

    def free(self) -> None:
        for kind, thing in self._made:
            getattr(self._library, f"cublasLt{kind}Destroy")(thing)
        self._made = []

    def _layout(self, rows: int, columns: int, leading_dimension: int) -> ctypes.c_void_p:
        extents = (ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(leading_dimension))
        return self._create("MatrixLayout", self._gemm.element.data_type, *extents)

    def _create(self, kind: str, *arguments: Any) -> ctypes.c_void_p:
        thing, name = ctypes.c_void_p(), f"cublasLt{kind}Create"
        check(getattr(self._library, name)(ctypes.byref(thing), *arguments), name)
        self._made.append((kind, thing))
        return thing

    def _set(self, kind: str, thing: ctypes.c_void_p, attribute: int, value: Any) -> None:
        name, size = f"cublasLt{kind}SetAttribute", ctypes.c_size_t(ctypes.sizeof(value))
        check(getattr(self._library, name)(thing, attribute, ctypes.byref(value), size), name)
