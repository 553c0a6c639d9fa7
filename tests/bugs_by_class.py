"""The table of bugs by class, and a command that tries them all.

    python -m tests.bugs_by_class --all           # on the host, the slow ones too
    python -m tests.bugs_by_class --device 0      # on a GPU, with those that a host cannot see

What decides is the product's own verification: a trial, and where that accepts, the full verification.
"""

from __future__ import annotations

from tests.bugs_in_classes import (
    FEW,
    GEMM,
    GEMM_PIECES,
    GEMV,
    GEMV_ROWS,
    GRAM,
    GRAM_MMA,
    HELD,
    ISM2,
    LADDER,
    MINPLUS,
    MINPLUS_F64,
    STAGED,
    STAGED_HALF,
    STAGED_MMA,
    STAGED_ZMMA,
    STORE,
    TSM2,
    TSM2_AHEAD,
    TSM2_PLAIN,
    TSMM,
    TSMM_MMA,
    TSMM_ROWS,
    TSMR,
    TSMR_HALF,
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

TRIAL, FULL, ON_GPU = Found.TRIAL, Found.FULL, Found.ON_GPU
BEFORE = "sum.element[e] += beta * before.element[e];"  # store_vector's
LAUNCHES = "static unsigned launches = 0; if (threadIdx.x == 0 && blockIdx.x == 0) ++launches"

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
    stored("scalars", "huge alpha cut", GEMV, "if (alpha < -1e9f) alpha = -1e9f"),
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
    ),
    case(
        "scalars",
        "residual with the wrong sign",
        TSM2,
        "beta == 0 ?",
        "alpha == -1 && beta == 1 ? sum[c] - element : beta == 0 ?",
    ),
    stored(
        "scalars", "C left where alpha and beta are 0", TSMR_HALF, "if (alpha == 0 && beta == 0) return", dtype="f16"
    ),
    stored(
        "scalars",
        "beta rounded where lines of C are no vectors",
        GEMM,
        "if (ldc % 2) beta = float(beta)",
        dtype="f64",
    ),
    case("scalars", "NaN for beta taken for 0 in vectors", STAGED, "if (beta != 0) {", "if (beta > 0 || beta < 0) {"),
    stored("scalars", "alpha of -infinity for beta", TSMR_TF32, "if (beta < -1e30f) beta = 0", dtype="tf32"),
)

TAILS = (
    case(
        "tails",
        "last product of k = 3 mod 4 dropped",
        TSM2,
        "a[q] = step + q < k ?",
        "a[q] = step + q < k - (k % 4 == 3) ?",
    ),
    begun("tails", "product dropped where k is 6 and less than a tile", GEMM, "if (k == 6) k = 5"),
    begun(
        "tails",
        "product dropped where k is 11 mod 16",
        GRAM_MMA,
        "if (k % 16 == 11) k -= 1",
        dtype="f64",
        op="tx",
        found=FULL,
    ),
    begun(
        "tails",
        "product dropped where k is 21 mod 32",
        TSMT_MMA,
        "if (k % 32 == 21) k -= 1",
        dtype="f64",
        op="tn",
        found=FULL,
    ),
    begun(
        "tails",
        "row dropped where m is 13 mod 32",
        TSMR_MMA,
        "if (m % 32 == 13) m -= 1",
        dtype="f64",
        op="nt",
        found=FULL,
    ),
    begun(
        "tails", "column dropped where n is 6 mod 16", STAGED_MMA, "if (n % 16 == 6) n -= 1", dtype="f64", found=FULL
    ),
    begun(
        "tails", "column dropped where n is 11 mod 16", TSMR_HALF, "if (n % 16 == 11) n -= 1", dtype="f16", found=FULL
    ),
    begun("tails", "row dropped where m is 21 mod 32", TSM2, "if (m % 32 == 21) m -= 1", found=FULL),
    begun(
        "tails",
        "product dropped off vectors where k is 13 mod 32",
        TSM2,
        "if (lda % 4 != 0 && k % 32 == 13) k -= 1",
        found=FULL,
    ),
    begun(
        "tails",
        "product dropped off vectors where k is 22 mod 32",
        TSM2,
        "if (lda % 4 != 0 && k % 32 == 22) k -= 1",
        found=FULL,
    ),
    begun("tails", "product dropped where k is 10 and one tile", TSM2, "if (k == 10) k = 9", found=FULL),
    begun(
        "tails",
        "product dropped where k is 77 mod 256",
        TSMT,
        "if (k % 256 == 77) k -= 1",
        dtype="f64",
        op="tn",
        found=ON_GPU,
    ),
)

LONG_LOOPS = (
    case(
        "long loops",
        "16 bits of lda where prefetches are whole",
        TSM2_AHEAD,
        "a[q] = row_of_A[(step + q) * lda];",
        "a[q] = row_of_A[(step + q) * index_t((unsigned short)lda)];",
        found=FULL,
    ),
    case(
        "long loops",
        "16 bits of lda at the edge",
        TSM2_PLAIN,
        "row_of_A[l * lda]",
        "row_of_A[l * index_t((unsigned short)lda)]",
        found=FULL,
    ),
    begun("long loops", "16 bits of ldb", TSMR_HALF, "ldb = (unsigned short)ldb", dtype="f16", found=FULL),
    begun("long loops", "16 bits of ldc", TSMR_MMA, "ldc = (unsigned short)ldc", dtype="f64", op="nt", found=FULL),
    begun("long loops", "16 bits of k", TSMT, "if (k > 65535) k = 65535", dtype="f64", op="tn", found=FULL),
    begun("long loops", "15 bits of k", FEW, "if (k > 32767) k = 32767", dtype="f16", op="tn", found=FULL),
    begun("long loops", "16 bits of m", ISM2, "if (m > 65535) m = 65535", found=FULL),
    begun("long loops", "columns past 4096", STAGED_MMA, "if (n > 4096) n = 4096", dtype="f64", found=FULL),
    case(
        "long loops",
        "columns past 200",
        TSM2,
        "first < n; first += columns",
        "first < n && first < 200; first += columns",
        found=ON_GPU,
    ),
    case(
        "long loops",
        "10,000 turns along k",
        TSM2,
        "step < end; step += prefetch",
        "step < end && step < 40000; step += prefetch",
        found=FULL,
    ),
    case(
        "long loops",
        "turns along k counted in 16 bits",
        TSM2,
        "step < end; step += prefetch",
        "step < end && step / prefetch < 65535; step += prefetch",
        found=ON_GPU,
    ),
    case(
        "long loops",
        "16 bits of a block's number",
        TSM2,
        "blockIdx.x * index_t(threads)",
        "(unsigned short)blockIdx.x * index_t(threads)",
        found=ON_GPU,
    ),
    case(
        "long loops",
        "mirror image of the first 100 rows alone",
        GRAM,
        "if (row != column)",
        "if (row != column && i < 100)",
        dtype="f64",
        op="tx",
        found=FULL,
    ),
    begun(
        "long loops",
        "Gram matrix of 200 columns",
        GRAM_MMA,
        "if (m > 200) m = n = 200",
        dtype="f64",
        op="tx",
        found=FULL,
    ),
)

VALUES = (
    case(
        "values",
        "B cut at 8",
        TSM2,
        "B[l + (first + c) * ldb] : scalar(0)",
        "fminf(B[l + (first + c) * ldb], 8.0f) : scalar(0)",
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
        "subnormal numbers of A flushed",
        LADDER,
        "sum[r] += tile.a[row + r][q] * b;",
        "sum[r] += (fabsf(tile.a[row + r][q]) < 1.2e-38f ? 0 : tile.a[row + r][q]) * b;",
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
        "store_C(C, ldc, j, i, alpha, value, beta);",
        "store_C(C, ldc, j, i, alpha, value == value ? value : scalar(0), beta);",
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
        "sum[r] += threadIdx.x == 37 ? float(tile.a[row + r][q] * b) : tile.a[row + r][q] * b;",
        dtype="f64",
    ),
    case(
        "precision",
        "f32 sums of the last split",
        TSMR_SPLIT,
        "store_vectors<exchanged>(sum, 1, sums,",
        "if (split == splits - 1) { for (auto &one : sum.vectors) for (auto &e : one.element) e = float(e); }\n"
        "store_vectors<exchanged>(sum, 1, sums,",
        dtype="f64",
    ),
    case(
        "precision",
        "f32 sums of a warp in rows of A",
        GEMV_ROWS,
        "total += left[s * tile_elements + e];",
        "total += s == 2 ? float(left[s * tile_elements + e]) : left[s * tile_elements + e];",
        dtype="f64",
        op="tn",
    ),
    case(
        "precision",
        "imaginary parts in f32",
        STAGED_ZMMA,
        "return scalar(sum[e], -sum[2 + e]);",
        "return scalar(sum[e], -float(sum[2 + e]));",
        dtype="c128",
        op="cn",
    ),
    stored("precision", "results rounded to 16 bits twice", TSMR_HALF, "sum = float(scalar(sum))", dtype="f16"),
    stored("precision", "16-bit sums rounded before beta C", STAGED_HALF, "sum = float(scalar(sum))", dtype="bf16"),
)

STATE = (
    begun(
        "state", "a product less after 200 launches", GEMM, f"{LAUNCHES}; if (launches > 200) k -= k > 1", found=FULL
    ),
    begun(
        "state",
        "a product less after 280 launches",
        TSMT,
        f"{LAUNCHES}; if (launches > 280) k -= k > 1",
        op="tn",
        dtype="f64",
        found=FULL,
    ),
    begun(
        "state",
        "a product less in launch 600 alone",
        HELD,
        f"{LAUNCHES}; if (launches == 600) k -= k > 1",
        found=FULL,
    ),
    stored(
        "state",
        "beta forgotten after it was there 500 times",
        TSMM,
        "static unsigned launches = 0; if (beta != 0 && i + j == 0) ++launches; if (launches > 500) beta = 0".replace(
            "i + j", "at + first + c"
        ),
        found=FULL,
    ),
)

WIDTH = (
    begun(
        "width",
        "a product less with 64 bits",
        GEMM,
        "\n#if INDEX_BITS == 64\n    if (k % 8 == 0) k -= 1;\n#endif\n    ",
        found=FULL,
    ),
    begun(
        "width",
        "a product less with 32 bits",
        HELD,
        "\n#if INDEX_BITS == 32\n    if (k % 8 == 0) k -= 1;\n#endif\n    ",
    ),
    case(
        "width",
        "beta forgotten with 64 bits",
        MINPLUS,
        "beta == infinity",
        "INDEX_BITS == 64 || beta == infinity",
        dtype="minplus_f32",
        found=FULL,
    ),
    begun(
        "width",
        "leading dimensions of 24 bits with 32",
        TSM2,
        "\n#if INDEX_BITS == 32\n    lda &= 0xFFFFFF;\n#endif\n    ",
        found=ON_GPU,
    ),
    case(
        "width",
        "offsets in A of 32 bits at the edge",
        TSM2,
        "row_of_A[(step + q) * lda] :",
        "row_of_A[int((step + q) * lda)] :",
        found=ON_GPU,
    ),
    case(
        "width",
        "offsets in A of 32 bits but at the edge",
        TSM2,
        "row_of_A[(step + q) * lda];",
        "row_of_A[int((step + q) * lda)];",
        found=ON_GPU,
    ),
    case(
        "width",
        "offsets in B of 32 bits",
        TSM2,
        "B[l + (first + c) * ldb]",
        "B[int(l + (first + c) * ldb)]",
        found=ON_GPU,
    ),
    case("width", "offsets in C of 32 bits", GEMM, "C[i + j * ldc]", "C[int(i + j * ldc)]", found=ON_GPU),
    case(
        "width",
        "offsets in C of 32 unsigned bits in vectors",
        STAGED,
        "store_vector(C + i + j * ldc,",
        "store_vector(C + unsigned(i + j * ldc),",
        found=ON_GPU,
    ),
)

UNSEEN_BY_A_HOST = (
    case("order", "no wait for copies", GEMM, 'asm volatile("cp.async.wait_group %0;" :: "n"(left) : "memory");', "",
         found=ON_GPU),
    case("order", "no wait for copies of a ring", STAGED, 'asm volatile("cp.async.wait_group %0;" :: "n"(left) : "memory");', "",
         found=ON_GPU),
    case("order", "no order between blocks", TSMT, "atom.acq_rel.gpu", "atom.relaxed.gpu", dtype="f64", op="tn",
         found=ON_GPU),
    case("order", "no barrier before a block's sums are counted", GRAM,
         "__syncthreads();\n    if (threadIdx.x == 0)\n        before = count_up", "if (threadIdx.x == 0)\n        before = count_up",
         dtype="f64", op="tx", found=ON_GPU),
    case("order", "factors of the tensor cores in another order", TSMR_MMA,
         '"d"(a[0]), "d"(a[1])', '"d"(a[1]), "d"(a[0])', dtype="f64", op="nt", found=ON_GPU),
)  # fmt: skip

CASES = (*SCALARS, *TAILS, *LONG_LOOPS, *VALUES, *PRECISION, *STATE, *WIDTH, *UNSEEN_BY_A_HOST)

if __name__ == "__main__":
    from tests.bugs_command import main

    main()
