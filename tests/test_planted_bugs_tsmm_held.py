"""Verification on the host rejects bugs in the kernel that keeps A in registers and writes a wide C."""

from __future__ import annotations

import pytest

from tests.conftest import TryKernel
from tests.planting import Bug, assert_rejected
from tsm2_tune.generator.families.tsmm_held import TsmmHeldConfig

pytestmark = pytest.mark.host

SHAPE = (512, 32, 8)

# All of C's columns in one block; and blocks that share rows, of one row a thread.
ALL = TsmmHeldConfig(64, 16, 8, 4, 32)
SHARED = TsmmHeldConfig(64, 4, 8, 8, 8)


def bug(name: str, original: str, planted: str, *, config: TsmmHeldConfig = ALL, dtype: str = "f32") -> Bug:
    return Bug(name, config, original, planted, dtype=dtype)


BUGS = (
    bug("a column of A past the last", "if (q < k)", "if (q <= k)"),
    bug("every column of A the first", "A + row + q * lda)", "A + row)"),
    bug("rows of a vector exchanged", "a[q][r] = piece.element[r]", "a[q][r] = piece.element[rows - 1 - r]"),
    bug("at the edge a column of A past the last", "q < k && row + r < m ?", "row + r < m ?"),
    bug("at the edge a row of A past the last", "q < k && row + r < m ?", "q < k ?"),
    bug("rows of B past the last", "q < k && first + c < n ?", "first + c < n ?"),
    bug("columns of B past the last", "q < k && first + c < n ?", "q < k ?"),
    bug("the first columns of B for every block", "B[q + (first + c) * ldb]", "B[q + c * ldb]", config=SHARED),
    bug("B's columns too near", "staged[q * across + c] =", "staged[q * columns + c] ="),
    bug("the first columns of B for all of C", "a, staged + c)", "a, staged)"),
    bug("one column of B for its neighbours", "b = staged[q * across + c]", "b = staged[q * across]"),
    bug("one row of B for all of A", "b = staged[q * across + c]", "b = staged[c]"),
    bug("factors of lower precision", "const sum_t b = staged", "const float b = staged", dtype="f64"),
    bug("sums of lower precision", "sum[c][r] += sum_t(a[q][r]) * b",
        "sum[c][r] = float(sum[c][r] + a[q][r] * b)", dtype="f64"),
    bug("A's leading dimension not looked at", "(A) | lda * sizeof(scalar)) %", "(A)) %"),
    bug("C's leading dimension not looked at", "(C) | ldc * sizeof(scalar)) %", "(C)) %"),
    bug("no barrier before B is read", "__syncthreads();  // B", "// B"),
    bug("rows of A past the last in place", "row + r < m ? sum_t(A[", "true ? sum_t(A["),
    bug("columns of B past the last in place", "c < left ? sum_t(B[", "true ? sum_t(B["),
    bug("one row of B in place", "B[l + c * ldb]", "B[c * ldb]"),
    bug("the first columns of B in place", "B + (first + c) * ldb, ldb", "B, ldb"),
    bug("a last column of A left out in place", "l < k; ++l", "l < k - 1; ++l"),
    bug("rows that do not fit held", "held = k <= depth", "held = true"),
    bug("columns of C past the last", "if (c >= left)", "if (c > left)"),
    bug("columns of C beside each other in one place", "C + row + c * ldc", "C + row"),
    bug("columns of C left out", "c += columns)", "c += 2 * columns)"),
    bug("the first columns of C alone", "C + (first + c) * ldc", "C + c * ldc", config=SHARED),
    bug("rows of C past the last", "if (row + r < m)", "if (row + r <= m)"),
    bug("blocks of rows past the last", "if (row < m)", "if (row <= m)"),
    bug("vectors of A that are not aligned", "if (inside && aligned)", "if (inside)"),
    bug("vectors of C that are not aligned", "inside && aligned_C);", "inside);"),
    bug("alpha left out", "scalar(alpha * sum[c][r]);", "scalar(sum[c][r]);"),
    bug("alpha left out where beta is not 0", ": alpha * sum[c][r] + beta", ": sum[c][r] + beta"),
    bug("beta left out where vectors are whole", "if (whole && beta == 0)", "if (whole)"),
    bug("C read where beta is 0", "beta == 0 ? alpha * sum[c][r] : alpha", "alpha"),
)  # fmt: skip


@pytest.mark.parametrize("planted", BUGS, ids=lambda planted: planted.name)
def test_a_planted_bug_is_rejected(try_kernel: TryKernel, planted: Bug) -> None:
    assert_rejected(try_kernel, planted, SHAPE, probes=True)
