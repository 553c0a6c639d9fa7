"""cuBLAS and cuBLASLt as benchmarks call them, on operands in the memory of the host."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from benchmarks.cells import Cell
from tests.fake_vendor import in_memory
from tsm2_tune.generator.device.roofline import Ceilings
from tsm2_tune.generator.families.inner import InnerFmaConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.device.emulator.device import HostDevice
from tsm2_tune.tuner.measure.vendor.cublas import Cublas
from tsm2_tune.tuner.measure.vendor.libraries import CublasError
from tsm2_tune.tuner.verify.operands import Operand, Operands

CEILINGS = Ceilings(4000.0, 4000.0, (("f32", 6e4), ("f64", 3e4)))
PRODUCT = Cell("T", "column", Problem(5, 3, 40, "f64", "tn"))
TSMT = InnerFmaConfig(128, 8, 8, 4, 4, step=1, stages=2, splits=1, min_blocks=1)


class KnownHost(HostDevice):
    """The host with the ceilings of a GPU."""

    def ceilings(self) -> Ceilings:
        return CEILINGS


def of_operand(operand: Operand) -> Any:
    return in_memory(operand.address, operand.rows, operand.columns, operand.filling.leading_dimension, "f8")


class FakeCublas:
    """X^T Y, and the lower half of X^T X, without the last `missing` products."""

    version = 1

    def __init__(self, missing: int) -> None:
        self._missing = missing

    def launch(self, operands: Operands) -> Callable[[], None]:
        def start() -> None:
            kept = operands.problem.k - self._missing
            of_operand(operands.c)[:] = of_operand(operands.a)[:kept].T @ of_operand(operands.b)[:kept]

        return start

    gemv_launch = launch

    def syrk_launch(self, operands: Operands) -> Callable[[], None]:
        ours: Any = self
        return Cublas.syrk_launch(ours, operands)

    def started(self, name: str, *arguments: Any) -> Callable[[], None]:
        uplo, operation, n, k, _, x, ldx, _, c, ldc = arguments
        assert (name, uplo, operation) == ("cublasDsyrk_v2", 0, 1)

        def start() -> None:
            first = in_memory(x.value, k, n, ldx, "f8")[: k - self._missing]
            lower = np.tri(n) == 1
            in_memory(c.value, n, n, ldc, "f8")[lower] = (first.T @ first)[lower]

        return start


class FakeLt:
    """An algorithm that computes nothing, and nothing for a matrix times itself."""

    version = 1

    def plan(self, operands: Operands) -> Any:
        if operands.problem.is_gram:
            raise CublasError("no such product")
        return SimpleNamespace(free=lambda: None, heuristic=lambda: (1,), launch=lambda _: lambda: None)


def addressed_operands(problem: Problem, *, padding: int) -> Operands:
    """Operands at the addresses 0, 1, ..., each line `padding` elements longer than it must be."""
    operands = {
        name: SimpleNamespace(
            address=address,
            filling=SimpleNamespace(leading_dimension=rows + padding),
            stride=(rows + padding) * lines,
        )
        for address, (name, (rows, lines)) in enumerate(problem.stored.items())
    }
    a = operands["A"]
    return cast(Operands, SimpleNamespace(problem=problem, a=a, b=operands.get("B", a), c=operands["C"]))
