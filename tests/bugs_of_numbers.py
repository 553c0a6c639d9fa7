"""Bugs that factors, elements or their last bits show."""

from __future__ import annotations

from tests.bugs_in_classes import (
    FEW,
    GEMM,
    GEMV,
    GEMV_ROWS,
    GRAM,
    ISM2,
    LADDER,
    MINPLUS,
    MINPLUS_F64,
    STAGED,
    STAGED_HALF,
    STAGED_ZMMA,
    TSM2,
    TSM2_PLAIN,
    TSMM,
    TSMM_ROWS,
    TSMR,
    TSMR_MMA,
    TSMR_ROWS,
    TSMR_SPLIT,
    TSMR_TF32,
    TSMT,
    TSMT_MMA,
    Found,
    begun,
    case,
    stored,
)

FULL = Found.FULL
BEFORE = "sum.element[e] += beta * before.element[e];"  # store_vector's

SCALARS = (
    stored("scalars", "beta rounded to f32", GEMM, "beta = float(beta)", dtype="f64"),
    stored("scalars", "alpha rounded to f32", TSMR_MMA, "alpha = float(alpha)", dtype="f64", op="nt"),
    case(
        "scalars",
        "beta rounded to f32 in vectors alone",
        STAGED,
        BEFORE,
        "sum.element[e] += float(beta) * before.element[e];",
        dtype="f64",
    ),
    case("scalars", "negative beta taken for 0", TSM2, "beta == 0 ?", "beta <= 0 ?"),
    stored("scalars", "beta below 1/2 flushed", TSMR_ROWS, "if (beta < 0.5f && beta > -0.5f) beta = 0", op="ttt"),
    stored("scalars", "nothing done where alpha is 0", TSMT, "if (alpha == 0) return", op="tn", dtype="f64"),
    stored("scalars", "C added where beta is -1", TSMM, "if (beta == -1) beta = 1"),
    stored(
        "scalars", "beta forgotten where alpha is 1", LADDER, "if (alpha == 1 && beta != 0) beta = 1", dtype="f64"
    ),
    stored("scalars", "huge alpha cut", GEMV, "if (alpha < -1e9f) alpha = -1e9f", found=FULL),
    stored(
        "scalars",
        "tiny alpha flushed",
        TSMT_MMA,
        "if (alpha < 1e-15 && alpha > -1e-15) alpha = 0",
        dtype="f64",
        op="tn",
    ),
    case(
        "scalars",
        "alpha's imaginary part dropped in vectors",
        STAGED_ZMMA,
        "sum.element[e] = alpha * sum.element[e];",
        "sum.element[e] = scalar(alpha.re) * sum.element[e];",
        dtype="c128",
        op="cn",
    ),
    stored(
        "scalars",
        "beta's imaginary part dropped where alpha is real",
        TSMR_SPLIT,
        "if (alpha.im == 0) beta.im = 0",
        dtype="c64",
    ),
    stored(
        "scalars", "beta's real part alone decides", TSMT, "if (beta.re == 0) beta = sum_t(0)", dtype="c64", op="cn"
    ),
    begun("scalars", "alpha rounded to f32 in (min, +)", MINPLUS_F64, "alpha = float(alpha)", dtype="minplus_f64"),
    stored(
        "scalars",
        "minus forgotten where alpha is -1 and beta 0",
        TSMR,
        "if (alpha == -1 && beta == 0) alpha = 1",
        op="nt",
        dtype="f64",
        found=FULL,
    ),
    case(
        "scalars",
        "residual with the wrong sign",
        TSM2,
        "beta == 0 ?",
        "alpha == -1 && beta == 1 ? sum[c] - element : beta == 0 ?",
        found=FULL,
    ),
    stored(
        "scalars",
        "C left where alpha and beta are 0",
        FEW,
        "if (alpha == 0 && beta == 0) return",
        dtype="f16",
        op="tn",
        found=FULL,
    ),
    stored(
        "scalars",
        "beta rounded where lines of C are no vectors",
        GEMM,
        "if (ldc % 2) beta = float(beta)",
        dtype="f64",
        found=FULL,
    ),
    case(
        "scalars",
        "NaN for beta taken for 0 in vectors",
        STAGED,
        "if (beta != 0) {",
        "if (beta > 0 || beta < 0) {",
        found=FULL,
    ),
    case(
        "scalars",
        "-infinity for beta taken for 0",
        TSMR_TF32,
        "value[e] + beta * sum_t(to[e])",
        "value[e] + (beta < -1e30f ? 0 : beta) * sum_t(to[e])",
        dtype="tf32",
        is_slow=True,
        found=FULL,
    ),
)

VALUES = (
    case(
        "values",
        "B cut at 8",
        TSM2,
        "B[l + (first + c) * ldb] : scalar(0)",
        "(B[l + (first + c) * ldb] > 8 ? 8 : B[l + (first + c) * ldb]) : scalar(0)",
        found=FULL,
    ),
    case(
        "values",
        "subnormal numbers of B flushed",
        TSM2,
        "B[l + (first + c) * ldb] : scalar(0)",
        "(fabsf(B[l + (first + c) * ldb]) < 1.2e-38f ? 0 : B[l + (first + c) * ldb]) : scalar(0)",
        found=FULL,
    ),
    case("values", "A cut at 100", TSM2_PLAIN, "row_of_A[l * lda]", "fminf(row_of_A[l * lda], 100.0f)"),
    case(
        "values",
        "subnormal numbers of B flushed",
        LADDER,
        "sum[r] += tile.a[row + r][q] * b;",
        "sum[r] += (fabsf(tile.a[row + r][q]) < 1.2e-38f ? 0 : tile.a[row + r][q]) * b;",
        found=FULL,
    ),
    case(
        "values",
        "zeros of A left out",
        TSM2,
        "sum[c] += a[q] * staged_step",
        "if (a[q] != 0) sum[c] += a[q] * staged_step",
    ),
    stored("values", "subnormal numbers of C flushed", GEMM, "if (fabsf(element) < 1.2e-38f) element = 0"),
    stored(
        "values",
        "NaN in C taken for 0",
        TSMR,
        "if (beta != 0 && element != element) element = 0",
        dtype="f64",
        op="nt",
    ),
    case(
        "values",
        "NaN in C taken for 0 in vectors",
        STAGED,
        BEFORE,
        "sum.element[e] += before.element[e] == before.element[e] ? beta * before.element[e] : scalar(0);",
        found=FULL,
    ),
    stored(
        "values",
        "C read at beta = 0 but for NaN",
        LADDER,
        "if (beta == 0 && element == element) { element = alpha * sum + beta * element; return; }",
        found=FULL,
    ),
    stored(
        "values",
        "C added up at beta = 0 but for NaN",
        GEMV,
        "if (beta == 0 && element == element) { element = alpha * sum + element; return; }",
        found=FULL,
    ),
    case(
        "values",
        "NaN in the mirror image taken for 0",
        GRAM,
        "store_element(C, ldc, j, i, alpha, value, beta);",
        "store_element(C, ldc, j, i, alpha, value == value ? value : scalar(0), beta);",
        dtype="f64",
        op="tx",
    ),
    case(
        "values",
        "infinite results cut",
        TSMM_ROWS,
        "total[e] = alpha * sum[e];",
        "total[e] = alpha * fminf(sum[e], 3e38f);",
        op="tn",
    ),
    case(
        "values",
        "negative lengths taken for 0",
        MINPLUS,
        "alpha + sum",
        "alpha + (sum < 0 ? 0 : sum)",
        dtype="minplus_f32",
    ),
    stored("values", "16-bit results cut at the largest", FEW, "sum = fminf(sum, 60000.0f)", dtype="f16", op="tn"),
)


def cut(number: str) -> str:
    """A double without its last 29 bits, as a float would be that has as large an exponent."""
    return f"__longlong_as_double(__double_as_longlong({number}) >> 29 << 29)"


PRECISION = (
    case(
        "precision",
        "f32 factors past l = 5000",
        TSM2,
        "multiply(sum, a, staged + (step - tile));",
        "if (step > 5000) { for (int q = 0; q < prefetch; ++q) a[q] = float(a[q]); }\n"
        "multiply(sum, a, staged + (step - tile));",
        dtype="f64",
        found=FULL,
    ),
    case(
        "precision",
        "f32 factors in rows past 40,000",
        ISM2,
        "multiply(sum, a, staged + (step - tile));",
        "if (row > 40000) { for (int q = 0; q < prefetch; ++q) a[q] = float(a[q]); }\n"
        "multiply(sum, a, staged + (step - tile));",
        dtype="f64",
        found=FULL,
    ),
    case(
        "precision",
        "f32 products of one thread",
        LADDER,
        "sum[r] += tile.a[row + r][q] * b;",
        "sum[r] += threadIdx.x == 37 ? " + cut("tile.a[row + r][q] * b") + " : tile.a[row + r][q] * b;",
        dtype="f64",
    ),
    case(
        "precision",
        "f32 sums of the last split",
        TSMR_SPLIT,
        "const index_t row = block_row + row_of_thread;",
        f"if (split == splits - 1) {{ for (auto &row : sum) for (auto &e : row) e = {cut('e')}; }}\n"
        "const index_t row = block_row + row_of_thread;",
        dtype="f64",
    ),
    case(
        "precision",
        "f32 sums of a warp in rows of A",
        GEMV_ROWS,
        "total += block_sums[s * elements + e];",
        "total += s == 2 ? " + cut("block_sums[s * elements + e]") + " : block_sums[s * elements + e];",
        dtype="f64",
        op="tn",
    ),
    case(
        "precision",
        "imaginary parts in f32",
        STAGED_ZMMA,
        "return T(sum[e], -sum[2 + e]);",
        f"return T(sum[e], -{cut('sum[2 + e]')});",
        dtype="c128",
        op="cn",
    ),
    stored("precision", "16-bit sums rounded before beta C", STAGED_HALF, "sum = float(scalar(sum))", dtype="bf16"),
)
