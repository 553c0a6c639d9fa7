"""The universal stencil on the host: every op of every type is right, and wrong kernels are found."""

from __future__ import annotations

from itertools import product

import pytest

from tests.conftest import TryKernel
from tests.planting import Bug, assert_rejected
from tests.stencil_kernels import stencil
from tsm2_tune.generator.families import family_named
from tsm2_tune.generator.families.gemm import GemmConfig
from tsm2_tune.generator.problem import COLUMN_MAJOR, DTYPES, FMA_DTYPES, Problem
from tsm2_tune.tuner.results.trial import Outcome

pytestmark = pytest.mark.host


def fours(op: str = "nn", buffers: int = 1) -> GemmConfig:
    """Tiles of 16 x 32, of which a thread moves four elements at a time."""
    grid_a = (4, 8) if op[0] in COLUMN_MAJOR else (2, 16)
    grid_b = (2, 16) if op[1] in COLUMN_MAJOR else (8, 4)
    return GemmConfig(16, 32, 8, 4, 8, *grid_a, *grid_b, 4, "nc", 4, buffers)


BLAS = [
    (dtype, a + b) for dtype in FMA_DTYPES for a, b in product("ntc" if DTYPES[dtype].is_complex else "nt", repeat=2)
]
OTHERS = [("c64", "jn"), ("c128", "cjt"), ("f32", "ttt"), ("f64", "nnt"), ("f32", "tx"), ("c64", "jxt")]


def test_there_are_26_cases() -> None:
    assert len(BLAS) == 26


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


@pytest.mark.parametrize(
    ("dtype", "op", "vector"), [("f32", "nn", 2), ("f64", "tt", 2), ("c64", "ctt", 2), ("f32", "ntt", 2)], ids=str
)
def test_shared_memory_is_read_by_vectors(try_kernel: TryKernel, dtype: str, op: str, vector: int) -> None:
    problem = Problem(73, 61, 37, dtype, op)
    result = try_kernel(stencil(problem.factors, vector, "ca"), problem, lambda text: text, probes=True)
    assert result.outcome is Outcome.OK, result.detail


@pytest.mark.parametrize("op", ["nn", "tt", "ttt"])
def test_four_elements_of_f32_are_a_vector(try_kernel: TryKernel, op: str) -> None:
    grids = (8, 4, 4, 8) if op == "nn" else (4, 8, 8, 4)
    problem = Problem(73, 61, 37, "f32", op)
    result = try_kernel(GemmConfig(16, 32, 8, 4, 8, *grids, 4, "nc"), problem, lambda text: text, probes=True)
    assert result.outcome is Outcome.OK, result.detail


BUGS = (
    Bug("the last stripe left out", stencil(), "more = l < k;", "more = l + k_blk <= k;"),
    Bug("the last tile of rows moved too far", stencil(), ": m - m_blk;", ": m - m_blk - 1;"),
    Bug("the last tile of columns moved too far", stencil(), ": n - n_blk;", ": n - n_blk - 1;"),
    Bug("products past the last", stencil(), "(i < last && q < k)", "i < last", shape=(9, 9, 37)),
    Bug("a row of the grid for another", stencil(), "threadIdx.x / m_dim", "threadIdx.x / m_dim / 2"),
    Bug("the reading grid across memory", stencil(), "y = threadIdx.x / dim;", "y = threadIdx.x / dim_across;"),
    Bug("parts exchanged in reading", stencil(), "bits.x, bits.y", "bits.y, bits.x", dtype="c64"),
)

PIECES_OF_TWO, COPIES = stencil(vector=2, load=2), stencil(vector=2, load=2, buffers=2)
AHEAD_BUGS = (
    Bug("copied over what is read", COPIES, "copy_k_tile(ring + next,", "copy_k_tile(ring + current,"),
    Bug("no zeros past the ends", COPIES, "*to = scalar(0);", ";"),
    Bug("lines for products", stencil(buffers=2), "by_line ? line * pitch", "!by_line ? line * pitch"),
    Bug("tiles not aligned", PIECES_OF_TWO, "aligned(a_along_k ? A : A + row, lda)", "aligned(A, lda)"),
    Bug("pointers of copies not aligned", COPIES, "(reinterpret_cast<unsigned long long>(first) | ", "("),
    Bug("a stripe of B further on", COPIES, "from_b += b_along_k ? k_blk", "from_b += b_along_k ? k_blk + 1"),
    Bug("the tile's first row left out of the copy's", COPIES, "own(A, lda, row)", "own(A, lda, own_row)"),
    Bug(
        "this thread's elements at the edge, but for the last",
        COPIES,
        "k_blk / threads; ++at",
        "k_blk / threads - 1; ++at",
    ),
    Bug("A aligned where B is", PIECES_OF_TWO, "aligned(a_along_k ? A : A + row, lda)", "aligned(B, ldb)"),
)


@pytest.mark.parametrize("bug", AHEAD_BUGS, ids=lambda bug: bug.name + " " + bug.op)
def test_wrong_pieces_and_copies_are_found(try_kernel: TryKernel, bug: Bug) -> None:
    assert_rejected(try_kernel, bug, (73, 61, 37), probes=bug.shape is None)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_wrong_kernels_are_found(try_kernel: TryKernel, bug: Bug) -> None:
    assert_rejected(try_kernel, bug, (73, 61, 37))
