"""Products of complex numbers on the host: every family that computes them is right, and wrong ones are found."""

from __future__ import annotations

import pytest

from tests.conftest import TryKernel
from tests.planting import Bug, assert_rejected
from tsm2_tune.generator.families.inner import InnerComplexDmmaConfig, InnerFmaConfig
from tsm2_tune.generator.families.resident_b import ResidentBFmaConfig
from tsm2_tune.generator.families.stream_a import StreamAComplexDmmaConfig, StreamAFmaConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results.trial import Outcome

pytestmark = pytest.mark.host

ROWS = StreamAFmaConfig(64, 1, 3, 8, 4, splits=3, row_tiles=1, min_blocks=1)
TILES = StreamAFmaConfig(64, 2, 4, 8, 2, splits=1, row_tiles=2, min_blocks=1)
RESULT = InnerFmaConfig(128, 8, 4, 4, 4, 2, 2, splits=16, min_blocks=1)
ZMMA = InnerComplexDmmaConfig(128, 16, 16, 2, 2, 8, 2, splits=16, min_blocks=1)
ROWS_ZMMA = StreamAComplexDmmaConfig(64, 1, 8, 16, 2, splits=3, row_tiles=1, min_blocks=1)
TILES_ZMMA = StreamAComplexDmmaConfig(64, 2, 16, 32, 4, splits=1, row_tiles=2, min_blocks=1)


def test_narrow_loads_move_one_number_of_c64(try_kernel: TryKernel) -> None:
    result = try_kernel(
        ResidentBFmaConfig(64, 8, 2, 4, 4, 1), Problem(300, 5, 9, "c64"), lambda text: text, probes=True
    )
    assert result.outcome is Outcome.OK, result.detail


BUGS = (
    Bug("B conjugated though it is not asked for", TILES, "= staged_rows[q * pitch + c];",
        "= conjugate(staged_rows[q * pitch + c]);", dtype="c64", op="nn"),
    Bug("the imaginary part not shuffled", RESULT, "__shfl_xor_sync(mask, x.im, lane_mask)", "x.im",
        dtype="c64", op="cn", shape=(8, 4, 260)),
    Bug("a real beta of a complex one", ROWS, "beta * sum_t(element)", "scalar(beta.re) * element", dtype="c128"),
    *(Bug(name, ZMMA, original, planted, dtype="c128", op="cn", shape=(16, 8, 300)) for name, original, planted in (
        ("parts of A exchanged (complex)", "left_factor, x.re, x.im", "left_factor, x.im, x.re"),
    )),
    Bug("unaligned numbers of c64 read as vectors (complex)", ZMMA, "bool vectors =", "bool vectors = true ||",
        dtype="c64", op="cn", shape=(16, 8, 300)),
    *(Bug(name, ROWS_ZMMA, original, planted, dtype="c128", op="jn", shape=(64, 8, 96))
      for name, original, planted in (
        ("rows of B exchanged (rows)", "l % 2 : l / 4 % 2", "l % 2 : 1 - l / 4 % 2"),
    )),
    *(Bug(name, TILES_ZMMA, original, planted, dtype="c128", shape=(64, 8, 96)) for name, original, planted in (
    )),
)  # fmt: skip


@pytest.mark.parametrize("bug", BUGS, ids=[bug.name for bug in BUGS])
def test_a_bug_in_complex_arithmetic_is_rejected(try_kernel: TryKernel, bug: Bug) -> None:
    assert_rejected(try_kernel, bug, (512, 16, 96), probes=True)
