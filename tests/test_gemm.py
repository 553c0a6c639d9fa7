"""The universal stencil on the host: every op of every type is right."""

from __future__ import annotations

from itertools import product

import pytest

from tests.conftest import TryKernel
from tests.stencil_kernels import stencil
from tsm2_tune.generator.families import family_named
from tsm2_tune.generator.families.gemm import GemmConfig
from tsm2_tune.generator.problem import COLUMN_MAJOR, DTYPES, FMA_DTYPES, Problem
from tsm2_tune.tuner.results.trial import Outcome

pytestmark = pytest.mark.slow


def fours(op: str = "nn", buffers: int = 1) -> GemmConfig:
    """Tiles of 16 x 32, of which a thread moves four elements at a time."""
    grid_a = (4, 8) if op[0] in COLUMN_MAJOR else (2, 16)
    grid_b = (2, 16) if op[1] in COLUMN_MAJOR else (8, 4)
    return GemmConfig(16, 32, 8, 4, 8, *grid_a, *grid_b, 4, "nc", 4, buffers)


BLAS = [
    (dtype, a + b) for dtype in FMA_DTYPES for a, b in product("ntc" if DTYPES[dtype].is_complex else "nt", repeat=2)
]
OTHERS = [("c64", "jn"), ("c128", "cjt"), ("f32", "ttt"), ("f64", "nnt"), ("f32", "tx"), ("c64", "jxt")]


@pytest.mark.parametrize(("dtype", "op"), BLAS + OTHERS, ids=lambda one: one)
def test_products_are_right_at_the_edges_too(try_kernel: TryKernel, dtype: str, op: str) -> None:
    problem = Problem(73, 73 if "x" in op else 61, 37, dtype, op)
    config = stencil(problem.factors)
    assert family_named("gemm").has(config, problem)
    result = try_kernel(config, problem, lambda text: text, probes=True)
    assert result.outcome is Outcome.OK, result.detail


@pytest.mark.parametrize("buffers", [1, 2])
@pytest.mark.parametrize("op", ["".join(op) for op in product("nt", "nt", ("", "t"))])
def test_four_elements_at_a_time(try_kernel: TryKernel, op: str, buffers: int) -> None:
    for m, n, k in ((16, 32, 8), (73, 61, 37), (68, 66, 40), (66, 68, 3)):
        problem = Problem(m, n, k, "f32", op)
        config = fours(op, buffers)
        assert family_named("gemm").has(config, problem)
        result = try_kernel(config, problem, lambda text: text, probes=k == 37)
        assert result.outcome is Outcome.OK, f"{problem.text}: {result.detail}"


@pytest.mark.parametrize(("dtype", "op", "vector"), [
    ("f32", "nn", 2), ("f64", "tt", 2), ("c64", "ctt", 2), ("f32", "ntt", 2), ("f32", "nn", 4), ("f32", "tt", 4),
    ("f32", "ttt", 4),
])  # fmt: skip
def test_shared_memory_is_read_by_vectors(try_kernel: TryKernel, dtype: str, op: str, vector: int) -> None:
    problem = Problem(73, 61, 37, dtype, op)
    grids = (8, 4, 4, 8) if op == "nn" else (4, 8, 8, 4)
    of_four = GemmConfig(16, 32, 8, 4, 8, *grids, 4, "nc")
    config = of_four if vector == 4 else stencil(problem.factors, vector, "ca")
    result = try_kernel(config, problem, lambda text: text, probes=True)
    assert result.outcome is Outcome.OK, result.detail
