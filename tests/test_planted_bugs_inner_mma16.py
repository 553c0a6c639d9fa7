"""Verification on the host rejects bugs in the kernels of transposed products in 16-bit floats and TF32.

Each is planted in a configuration that is tuned for one whole tile of C and whole chunks of k, as a user's may be:
what finds it is the configuration's probes.
"""

from __future__ import annotations

import pytest

from tests.conftest import TryKernel
from tests.planting import Bug, assert_rejected
from tsm2_tune.generator.families.inner import InnerFma16BitConfig, InnerMma16Config, InnerTf32Config

pytestmark = pytest.mark.host

SHAPE = (16, 16, 1024)
FEW_SHAPE = (4, 4, 1024)

# What comes next waits in registers, or is copied on; a warp for a tile, and two.
BLOCK = InnerMma16Config(128, 32, 32, 2, 4, block_k=128, stages=2, splits=2)
COPIES = InnerMma16Config(128, 16, 16, 1, 2, block_k=64, stages=3, splits=16)
TF32 = InnerTf32Config(128, 32, 32, 2, 2, block_k=64, stages=2, splits=1)

FEW = InnerFma16BitConfig(128, 4, 4, piece=4, stages=2, splits=16, min_blocks=1)
WIDE = InnerFma16BitConfig(64, 8, 2, piece=8, stages=2, splits=20, min_blocks=1)
ODD = InnerFma16BitConfig(128, 3, 6, piece=8, stages=1, splits=1, min_blocks=1)


def half(
    name: str, config: InnerMma16Config, original: str, planted: str, *, op: str = "tn", dtype: str = "bf16"
) -> Bug:
    return Bug(name, config, original, planted, dtype=dtype, op=op)


def tf32(name: str, original: str, planted: str, *, op: str = "tn", dtype: str = "tf32") -> Bug:
    return Bug(f"{name} ({dtype})", TF32, original, planted, dtype=dtype, op=op)


def few(
    name: str, config: InnerFma16BitConfig, original: str, planted: str, *, op: str = "tn", dtype: str = "bf16"
) -> Bug:
    return Bug(f"{name} (few)", config, original, planted, dtype=dtype, op=op)


# Not among them: that addresses are looked at beside leading dimensions. On the host every operand ends where a page
# does, so that an aligned leading dimension of one comes with another's that is not, where an address is not aligned.
COPYING_BUGS = (
    half("16 bytes that are not whole", COPIES, "load_zfill<bits_t>(from, valid)",
        "load_zfill<bits_t>(from, width)"),
)  # fmt: skip

# Not among them: that the rings are no longer read where the sums take their place. On the host a block's warps take
# turns, and the last of them reads before the first of them writes.
RING_BUGS = (
    half("an incomplete chunk taken for whole", BLOCK, "? k / block_k : 0", "? k_tiles : 0"),
)  # fmt: skip

PRODUCT_BUGS = (
    half("sums rounded before the last", BLOCK, "= sum[s][o][e];", "= sum_t(scalar(sum[s][o][e]));"),
)  # fmt: skip

TF32_BUGS = (
    tf32("what is kept of A taken for the rest", "add_products(rest_a, b)", "add_products(a, b)", dtype="3xtf32"),
    tf32("what is kept of B taken for the rest", "add_products(a, rest_b)", "add_products(a, b)", dtype="3xtf32"),
    tf32("the rests multiplied", "add_products(rest_a, b)", "add_products(rest_a, rest_b)", dtype="3xtf32"),
)  # fmt: skip


FEW_BUGS = (
    few("pairs of products exchanged", WIDE, "line * piece + q :", "line * piece + (q ^ 2) :", op="nn"),
    few("the edge's lines exchanged", ODD, "r = (v * vector_elements + e) % lines;",
        "r = lines - 1 - (v * vector_elements + e) % lines;", op="nn"),
    few("as many lines as a leading dimension has room for", FEW, "ld == lines && count == lines",
        "ld >= lines", op="ntt"),
)  # fmt: skip

HALF_BUGS = (*COPYING_BUGS, *RING_BUGS, *PRODUCT_BUGS, *TF32_BUGS)


@pytest.mark.parametrize("planted", HALF_BUGS, ids=lambda one: one.name)
def test_a_planted_bug_is_rejected(try_kernel: TryKernel, planted: Bug) -> None:
    assert_rejected(try_kernel, planted, SHAPE, probes=True)


@pytest.mark.parametrize("planted", FEW_BUGS, ids=lambda one: one.name)
def test_a_bug_planted_where_columns_are_few_is_rejected(try_kernel: TryKernel, planted: Bug) -> None:
    assert_rejected(try_kernel, planted, FEW_SHAPE, probes=True)
