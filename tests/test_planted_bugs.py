"""Verification on the host rejects what a careless hand might do to a template: each bug is planted, and found."""

from __future__ import annotations

import pytest

from tests.conftest import TryKernel
from tests.planting import Bug, assert_rejected
from tsm2_tune.generator.families.published import Ism2Config, Tsm2Config
from tsm2_tune.generator.families.resident_b import ResidentBFmaConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results.trial import Outcome
from tsm2_tune.tuner.worker.client import Worker

pytestmark = pytest.mark.host

# m leaves the last block part-filled and gives a second turn to blocks that stride, n and k leave a tail, k takes
# two tiles of B.
SHAPE = (181, 5, 67)
EVEN = (182, 5, 68)  # vectors of two stay aligned in every column, and the last one is read by them

V0 = Tsm2Config("v0", threads=32, columns=1, prefetch=1)
V1 = Tsm2Config("v1", threads=32, columns=2, prefetch=1)
V2 = Tsm2Config("v2", threads=32, columns=2, prefetch=6)
V3 = Tsm2Config("v3", threads=32, columns=2, prefetch=6)
OPT2 = Ism2Config(2, threads=32, columns=2, prefetch=4, row_tiles=2)
TSMM = ResidentBFmaConfig(threads=64, vector_bytes=8, vectors=1, columns=2, prefetch=4, row_tiles=2)


BUGS = (
    Bug("vectors stored past the last row", TSMM, "within_m && aligned_c", "aligned_c", shape=EVEN),
    Bug(
        "no barrier before the tile is overwritten", V3, "__syncthreads();  // every thread is done with the tile", ""
    ),
    Bug(
        "a barrier that some threads skip",
        V2,
        "scalar *staged =",
        "if (threadIdx.x == 5) return;\n    scalar *staged =",
    ),
    Bug("leading dimension of A taken for m", V0, "row_of_A[l * lda]", "row_of_A[l * m]"),
    Bug("sums not cleared for the next columns", V1, "scalar sum[columns] = {};", "static scalar sum[columns] = {};"),
    Bug("beta applied at every tile of B", OPT2, "tile == 0 ? beta : scalar(1)", "beta"),
    Bug(
        "an operand overwritten",
        V0,
        "store_c(sum, alpha",
        "const_cast<scalar &>(A[0]) = 1;\n        store_c(sum, alpha",
    ),
    Bug("a misaligned vector", TSMM, "const bool aligned = ", "const bool aligned = true || "),
    Bug("B staged once though it has two tiles", TSMM, "staged_all = k <= tile_depth", "staged_all = true"),
)


# Bugs that do not show at the shape below, whose extents are whole blocks, groups, steps and tiles.
FRIENDLY = (512, 8, 256)
HIDDEN_BUGS = (
    Bug("a factor of lower precision", V3, ": alpha * sum[c]", ": scalar(float(alpha)) * sum[c]", dtype="f64"),
    Bug(
        "operands rounded to 11 bits",
        V1,
        "const scalar a = row_of_A[l * lda];",
        "const scalar a = __int_as_float(__float_as_int(row_of_A[l * lda]) & ~0x1FFF);",
    ),
    Bug(
        "subnormal numbers taken for zero",
        V1,
        "const scalar a = row_of_A[l * lda];",
        "const scalar a = fabs(row_of_A[l * lda]) < 1e-37f ? scalar(0) : row_of_A[l * lda];",
    ),
    Bug("large sums scaled out of range", V1, "? alpha * sum[c]", "? alpha * (sum[c] * 16) / 16"),
)


@pytest.mark.parametrize("bug", HIDDEN_BUGS, ids=lambda bug: bug.name)
def test_a_bug_hidden_at_the_tuned_shape_is_rejected_on_the_probes(try_kernel: TryKernel, bug: Bug) -> None:
    assert_rejected(try_kernel, bug, FRIENDLY, probes=True)


def test_loads_of_four_bytes_are_right(try_kernel: TryKernel) -> None:
    narrow = ResidentBFmaConfig(threads=64, vector_bytes=4, vectors=1, columns=2, prefetch=4, row_tiles=1)
    result = try_kernel(narrow, Problem(*SHAPE, "f32"), lambda text: text, probes=True)
    assert result.outcome is Outcome.OK, result.detail


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_rejected(
    try_kernel: TryKernel, worker: Worker, monkeypatch: pytest.MonkeyPatch, bug: Bug
) -> None:
    if "never ends" in bug.name:
        monkeypatch.setattr(worker, "limit_seconds", 5.0)  # all of which it takes
    assert_rejected(try_kernel, bug, SHAPE)
