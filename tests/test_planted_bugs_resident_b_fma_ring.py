"""Verification on the host rejects bugs in the kernel that moves tiles of rows through shared memory in one piece."""

from __future__ import annotations

import pytest

from tests.conftest import TryKernel
from tests.planting import Bug, assert_rejected
from tsm2_tune.generator.families.resident_b import ResidentBFmaRingConfig

pytestmark = pytest.mark.host

SHAPE = (512, 16, 16)  # no partial tiles: the configuration's probes find the bugs

# Strips of several rows a lane; one place and one row a lane; and memory that a part of k can fill.
STRIPS = ResidentBFmaRingConfig(128, 4, 8, 2, 55, splits=16)
ONE_PLACE = ResidentBFmaRingConfig(128, 1, 4, 1, 55, splits=16)
FULL = ResidentBFmaRingConfig(128, 2, 4, 2, 112, splits=16)


def bug(
    name: str,
    original: str,
    planted: str,
    *,
    config: ResidentBFmaRingConfig = STRIPS,
    dtype: str = "f32",
    op: str = "ttt",
) -> Bug:
    return Bug(name, config, original, planted, dtype=dtype, op=op)


BUGS = (
    bug("A as one piece where it has gaps", "lda == depth && aligned(A)", "aligned(A)"),
    bug("C as one piece where it has gaps", "ldc == across && aligned(C)", "aligned(C)"),
    bug("vectors of A that are not aligned", "lda == depth && aligned(A)", "lda == depth"),
    bug("vectors of C that are not aligned", "ldc == across && aligned(C)", "ldc == across"),
    bug("the last elements of A left out", "lines_a.for_each_element(whole, count,",
        "lines_a.for_each_element(count, count,"),
    bug("the last elements of C left out", "lines_c.for_each_element(whole, count,",
        "lines_c.for_each_element(count, count,"),
    bug("columns of the next row overwritten", "if (c < remaining) {", "if (true) {"),
    bug("no room for lines apart in a last part", "k == k_of_a ? Lines(k).pitch : k + width", "Lines(k).pitch",
        config=FULL),
    bug("beta again for every part of k", "first_l == 0 ? beta : sum_t(1)", "beta"),
    bug("a tile of A overwritten while it is multiplied", "cp_async_wait<stages - 1>();", "cp_async_wait<stages>();",
        config=ONE_PLACE),
    bug("fewer places than stages awaited as if they were all", "part.used_stages == stages", "true"),
    bug("C stored before all warps have put theirs", "__syncthreads();  // the tile of C is complete", "//"),
    bug("the tile of C overwritten while it is stored", "__syncthreads();  // this tile of A", "__syncwarp();  //"),
    bug("B not conjugated", "conjugate(*at)", "*at", dtype="c128", op="tct"),
    bug("A not conjugated", "conjugate(factor[r].element[e])", "factor[r].element[e]", dtype="c64", op="ctt",
        config=ONE_PLACE),
)  # fmt: skip


@pytest.mark.parametrize("planted", BUGS, ids=lambda planted: planted.name)
def test_a_planted_bug_is_rejected(try_kernel: TryKernel, planted: Bug) -> None:
    assert_rejected(try_kernel, planted, SHAPE, probes=True)
