"""Verification on the host rejects bugs in the kernel whose warps each stream rows of A past a B that stays."""

from __future__ import annotations

import pytest

from tests.conftest import TryKernel
from tests.planting import Bug, assert_rejected
from tsm2_tune.generator.families.tsmm_mma import TsmmMmaConfig

pytestmark = pytest.mark.host

SHAPE = (300, 24, 32)

# All of a row of A in one place of the ring; several chunks of k for each row; and a B of several parts.
WHOLE = TsmmMmaConfig(64, 2, 32, 32, 32, 2, 2, splits=2)
CHUNKS = TsmmMmaConfig(64, 2, 32, 64, 16, 3, 1, splits=2)
PARTS = TsmmMmaConfig(128, 2, 16, 16, 16, 4, 2, splits=1)
# Products of 16 along k by one instruction, in c128.
DEEP = TsmmMmaConfig(64, 1, 64, 32, 16, 3, 2, splits=2)
TEAMS = TsmmMmaConfig(192, 2, 32, 32, 32, 2, 1, splits=2, teams=2)


def f32(name: str, config: TsmmMmaConfig, op: str, original: str, planted: str) -> Bug:
    return Bug(f"{name} (f32)", config, original, planted, op=op)


def f64(name: str, config: TsmmMmaConfig, op: str, original: str, planted: str) -> Bug:
    return Bug(f"{name} (f64)", config, original, planted, dtype="f64", op=op)


def c64(name: str, config: TsmmMmaConfig, op: str, original: str, planted: str) -> Bug:
    return Bug(f"{name} (c64)", config, original, planted, dtype="c64", op=op)


def c128(name: str, config: TsmmMmaConfig, op: str, original: str, planted: str) -> Bug:
    return Bug(f"{name} (c128)", config, original, planted, dtype="c128", op=op)


BUGS = (
    f32("columns of B in another order", WHOLE, "nn", "+ g % 2, g / 2)", ", g)"),
    f64("a chunk's place read twice", CHUNKS, "nn", "place = place + 1 == stages ? 0 : place + 1;", "place = 0;"),
    f32("every part of B's columns the first", PARTS, "nn", "sweep(first_l, first_j)", "sweep(first_l, 0)"),
    f64("every chunk times the first of B", CHUNKS, "nn", "b += steps", "b += 0 * steps"),
    f64("every chunk of A the first", CHUNKS, "ttt", "first_l + next_chunk * chunk", "first_l"),
    f64("a row's last chunks left out", CHUNKS, "nn", "c < chunks;", "c < chunks - 1;"),
    f32("the next rows too early", CHUNKS, "nn", "next_chunk == 0 ? stride : 0", "stride"),
    f64("steps left out", CHUNKS, "nn", "p < steps * turns;", "p < steps * turns - 1;"),
    f32("every turn's products the first's", CHUNKS, "ttt", "[2 * turn + e / 2]", "[e / 2]"),
    f64("rows and products exchanged", PARTS, "nn", "e % 2][2 * turn + e / 2]", "e / 2][2 * turn + e % 2]"),
    c64("every strip of rows the first", CHUNKS, "nn", "[o], factor[r], other)", "[o], factor[0], other)"),
    c64("products of B in another order", CHUNKS, "ctt", "product % turns *", "0 * product *"),
    c128("both halves of a product the first of B", DEEP, "nn", "b[((p + q) * teams", "b[(p * teams"),
    c128("both halves of a product the first of A", DEEP, "nn", "(p + q) / turns * step", "p / turns * step"),
    c128("halves of a product of B exchanged", DEEP, "nn", "other[2 * q] = pair.x;", "other[2 - 2 * q] = pair.x;"),
    c128("A not conjugated", PARTS, "cn", "flipped(im, none)", "flipped(im, sign)"),
    c64("an imaginary part of B left out", PARTS, "nn", "make_double2(b.re, b.im)", "make_double2(b.re, 0)"),
    c128("factors of lower precision", PARTS, "nn", "a[r][turn].im)", "float(a[r][turn].im))"),
    c64("the sum not conjugated", WHOLE, "cj", "-sum[2 + e]", "sum[2 + e]"),
    c64("elements of a vector of C exchanged", WHOLE, "nn", "sum_at(sum, i + e, j)", "sum_at(sum, i + 1 - e, j)"),
    c64("elements of a vector of a row-major C exchanged", WHOLE, "ttt", "i, j + e)", "i, j + 1 - e)"),
    f32("a chunk before its copies are there", WHOLE, "nn", "copies<stages - 2>();", "copies<stages - 1>();"),
    f32("a place that is still read", CHUNKS, "nn", "place == 0 ? stages - 1 : place - 1", "place"),
    f32("no barrier before B is staged anew", PARTS, "nn", "__syncthreads();  // what", "// what"),
    f32("the last warp's rows are the first's", PARTS, "nn", "warp / teams * rows;", "0 * rows;"),
    f32("vectors of A past its last row", WHOLE, "nn", "next_row + rows <= m", "next_row < m"),
    f32("vectors of A past its last column", CHUNKS, "ttt", "l + chunk <= k", "l < k"),
    f32("A always aligned", WHOLE, "nn", "if (vectors_A &&", "if ("),
    f32("C always aligned", WHOLE, "nn", "whole = vectors_C &&", "whole ="),
    f64("vectors of C past its last row", WHOLE, "nn", "row + rows <= m && column", "column"),
    f64("vectors of C past its last column", WHOLE, "nn", "&& column + warp_columns <= n", ""),
    f64("columns past the last stored", WHOLE, "nn", "column + across < n", "column + across <= n"),
    f64("columns of B past the last", PARTS, "nt", "l < k && j < n;", "l < k;"),
    f64("rows of B past the last", PARTS, "nn", "l < k && j < n;", "j < n;"),
    f32("columns of B past the last, where it is converted", PARTS, "nt", "l < k && j < n ?", "l < k ?"),
    f32("rows of B past the last, where it is converted", PARTS, "nn", "l < k && j < n ?", "j < n ?"),
    f32("A's leading dimension not looked at", WHOLE, "nn", "(A) | lda * sizeof(scalar)) %", "(A)) %"),
    f32("C's leading dimension not looked at", WHOLE, "nn", "(C) | ldc * sizeof(scalar)) %", "(C)) %"),
    f64("no barrier before B is read", TEAMS, "nn", "__syncthreads();  // B is staged", ""),
    f64("B before its copies are there", TEAMS, "nn", "await_copies<stages - 2>();\n        __sync", "__sync"),
    f32("every team's columns the first's", TEAMS, "nn", "first_j + team * warp_columns;", "first_j;"),
    f32("every team's part of B the first's", TEAMS, "nn", "staged_b + team * octets * 32", "staged_b"),
    f64("a team's rows the others'", TEAMS, "ttt", "warp / teams * rows", "warp * rows"),
    f64("columns of B of one team alone", TEAMS, "nn", "return team * warp_columns +", "return"),
    f32("a block's rows too many", TEAMS, "nn", "threads / 32 / teams * rows;", "threads / 32 * rows;"),
    f32("beta again for every part of k", PARTS, "nn", "first_l == 0 ? beta : scalar(1)", "beta"),
    f32("alpha left out", WHOLE, "nn", "alpha * sum.element[e]", "sum.element[e]"),
    f32("C read where beta is 0", WHOLE, "nn", "if (beta != 0) {", "if (true) {"),
)  # fmt: skip


@pytest.mark.parametrize("bug", BUGS, ids=[bug.name for bug in BUGS])
def test_a_planted_bug_is_rejected(try_kernel: TryKernel, bug: Bug) -> None:
    assert_rejected(try_kernel, bug, SHAPE, probes=True)
