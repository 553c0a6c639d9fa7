"""The product in the semiring (min, +): the exported module, and the reference of verification."""

from __future__ import annotations

from dataclasses import astuple
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.fabricated import exported, host_run, imported, trial, winners
from tests.on_host import upload_operand
from tests.stencil_kernels import stencil
from tsm2_tune.generator.families import FAMILIES
from tsm2_tune.generator.families.gemm import MinplusConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.tuner.device.emulator.device import HostDevice
from tsm2_tune.tuner.device.support_kernels import Support
from tsm2_tune.tuner.verify.checks import Check, checks_of
from tsm2_tune.tuner.verify.operands import Operand, Operands
from tsm2_tune.tuner.verify.verdict import compare, prepare

pytestmark = pytest.mark.slow

DTYPES = ("minplus_f32", "minplus_f64")


def test_no_other_family_takes_the_semiring_for_its_own() -> None:
    for shape in ((4096, 4096, 4096), (10**6, 8, 8), (8, 8, 10**6), (4096, 1, 4096)):
        for dtype in DTYPES:
            able = [family.name for family in FAMILIES.values() if family.supports(Problem(*shape, dtype))]
            assert able == ["minplus"]


def module_of(folder: Path, *problems: Problem) -> ModuleType:
    """Exported with kernels for these problems."""
    configs = [(MinplusConfig(*astuple(stencil(one.factors))), one) for one in problems]
    tried = [(host_run(), trial(config=config, problem=one, source=render(one, config))) for config, one in configs]
    return imported(exported("module", winners(folder, *tried)), folder)


def least(a: Any, b: Any) -> Any:
    """The product, by NumPy."""
    return (a[:, :, np.newaxis] + b[np.newaxis]).min(axis=1)


@pytest.mark.parametrize(("dtype", "number"), [("minplus_f32", np.float32), ("minplus_f64", np.float64)])
def test_the_module_takes_a_matrix_of_lengths(tmp_path: Path, dtype: str, number: Any) -> None:
    module = module_of(tmp_path, Problem(73, 61, 37, dtype), Problem(73, 61, 37, dtype, "ttt"))
    random = np.random.default_rng(1)
    orders: tuple[Any, ...] = ("F", "C")
    for (m, n, k), order in product(((73, 61, 37), (5, 3, 100), (1, 1, 1)), orders):
        a, b, c = (random.random(shape).astype(number, order) for shape in ((m, k), (k, n), (m, n)))
        a[random.random((m, k)) < 0.5] = np.inf
        a[-1], b[:, -1] = np.inf, np.inf
        np.testing.assert_array_equal(module.gemm(a, b, math="minplus"), least(a, b))
        found = module.gemm(a, b, out=c.copy(order), beta=0, math="minplus")
        np.testing.assert_array_equal(found, np.minimum(c, least(a, b)))
        found = module.gemm(a, b, out=c.copy(order), alpha=2.5, beta=-1, math="minplus")
        np.testing.assert_array_equal(found, np.minimum(number(2.5) + least(a, b), number(-1) + c))
        a[:, : k // 2][np.isfinite(a[:, : k // 2])] *= -1  # some stripes get signs
        np.testing.assert_array_equal(module.gemm(a, b, math="minplus"), least(a, b))


def test_the_module_asks_for_what_it_has(tmp_path: Path) -> None:
    module = module_of(tmp_path, Problem(73, 61, 37, "minplus_f32"))
    a, b = np.zeros((5, 7), np.float32, "F"), np.zeros((7, 3), np.float32, "F")
    assert module.choice(a, b, math="minplus").winner.dtype == "minplus_f32"
    assert module.match(5, 3, 7, "minplus_f32").winner.dtype == "minplus_f32"
    by_minplus: dict[str, Any] = {"math": "minplus"}
    for dtype, given, error, said in (
        (np.float32, {}, LookupError, "no f32 kernel tuned on a host is in this module"),
        (np.float32, {"beta": 0} | by_minplus, ValueError, "beta = 0: pass the matrix that it scales as out"),
        (np.float64, by_minplus, LookupError, "no minplus_f64 kernel"),
        (np.float16, by_minplus, ValueError, "minplus of float32, or minplus of float64, got 'minplus' of float16"),
    ):
        with pytest.raises(error, match=said):
            module.gemm(a.astype(dtype), b.astype(dtype), **given)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", ["67x5x70", "1x1x20011", "3x7x63", "9x1x1000", "2x2x4099"])
@pytest.mark.parametrize("op", ["nn", "tn", "ntt"])
def test_only_what_differs_from_the_least_is_wrong(
    device: HostDevice, support_code: bytes, dtype: str, shape: str, op: str
) -> None:
    problem = Problem.parse(f"{shape}:{dtype}:{op}")
    operands = Operands(device, Support(device, support_code, dtype), problem, index_bits=32)
    check = checks_of(problem)[0]
    prepare(operands, check, seed=3)
    a, b = (matrix(device, operand, problem) for operand in (operands.a, operands.b))
    expected = least(a, b)
    upload_operand(device, operands.c, problem, expected[..., np.newaxis].astype(np.float64))
    assert compared(operands, check)[:, 4].sum() == 0
    row, column = problem.m // 2, problem.n - 1
    expected[row, column] = np.nextafter(expected[row, column], np.inf, dtype=expected.dtype)
    upload_operand(device, operands.c, problem, expected[..., np.newaxis].astype(np.float64))
    found = compared(operands, check)
    assert found[:, 4].sum() == 1
    assert found[found[:, 0].argmax(), 1] == column * problem.m + row


def matrix(device: HostDevice, operand: Operand, problem: Problem) -> Any:
    """The operand's elements; rows and columns are the product's."""
    buffer = np.empty(operand.buffer.size_bytes // problem.dtype.element_bytes, problem.dtype.numpy_name)
    device.download(operand.buffer, buffer)
    ld = operand.filling.leading_dimension
    lines = np.array([buffer[operand.front + ld * line :][: operand.rows] for line in range(operand.columns)])
    return lines if operand.row_major else lines.T


def compared(operands: Operands, check: Check) -> npt.NDArray[np.float64]:
    """The rows of the comparison."""
    operands.support.begin_reports()
    compare(operands, check, place=0)
    return operands.support.reports(1)[0].worst
