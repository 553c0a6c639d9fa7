"""Bugs that extents, leading dimensions, many launches or the width of an index show."""

from __future__ import annotations

from tests.bugs_in_classes import (
    FEW,
    GEMM,
    GRAM,
    GRAM_MMA,
    HELD,
    ISM2,
    MINPLUS,
    STAGED,
    STAGED_MMA,
    TSM2,
    TSM2_AHEAD,
    TSM2_PLAIN,
    TSMM,
    TSMR_HALF,
    TSMR_MMA,
    TSMT,
    TSMT_MMA,
    Found,
    begun,
    case,
    stored,
)

FULL, ON_GPU = Found.FULL, Found.ON_GPU
LAUNCHES = "static unsigned launches = 0; if (threadIdx.x == 0 && blockIdx.x == 0) ++launches"
SIMILAR_DTYPES = (
    "static unsigned alike = 0; static index_t shape = 0; if (threadIdx.x == 0 && blockIdx.x == 0)"
    " { alike = shape == m + n + k ? alike + 1 : 0; shape = m + n + k; }"
)

TAILS = (
    case(
        "tails",
        "a row before the first, where there is one",
        TSM2,
        "row < m ? row : m - 1",
        "row < m ? row : m - 2",
        found=FULL,
    ),
    case(
        "tails",
        "last product of k = 3 mod 4 dropped",
        TSM2,
        "a[q] = step + q < k ?",
        "a[q] = step + q < k - (k % 4 == 3) ?",
    ),
    begun(
        "tails",
        "product dropped where k is 6 and less than a tile",
        GEMM,
        "if (k == 6) k = 5",
        found=FULL,
    ),
    begun(
        "tails",
        "product dropped where k is 11 mod 16",
        GRAM_MMA,
        "if (k % 16 == 11) k -= 1",
        dtype="f64",
        op="tx",
        found=FULL,
        is_slow=True,
    ),
    begun(
        "tails",
        "product dropped where k is 21 mod 32",
        TSMT_MMA,
        "if (k % 32 == 21) k -= 1",
        dtype="f64",
        op="tn",
        found=FULL,
        is_slow=True,
    ),
    begun(
        "tails",
        "row dropped where m is 13 mod 32",
        TSMR_MMA,
        "if (m % 32 == 13) m -= 1",
        dtype="f64",
        op="nt",
        found=FULL,
        is_slow=True,
    ),
    begun(
        "tails", "column dropped where n is 6 mod 16", STAGED_MMA, "if (n % 16 == 6) n -= 1", dtype="f64", found=FULL
    ),
    begun(
        "tails",
        "column dropped where n is 11 mod 16",
        TSMR_HALF,
        "if (n % 16 == 11) n -= 1",
        dtype="f16",
        found=FULL,
        is_slow=True,
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
        "a single split counted as two",
        TSMT,
        "const int splits = gridDim.y, split",
        "const int splits = gridDim.y == 1 ? 2 : gridDim.y, split",
        dtype="f64",
        op="tn",
        found=FULL,
    ),
    case(
        "long loops",
        "a rest of splits in no group",
        TSMT,
        "splits > flat_splits ? (splits + group_splits - 1) / group_splits",
        "splits > flat_splits ? splits / group_splits",
        dtype="f64",
        op="tn",
        found=FULL,
    ),
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
    begun(
        "long loops", "16 bits of ldb", TSMR_HALF, "ldb = (unsigned short)ldb", dtype="f16", found=FULL, is_slow=True
    ),
    begun(
        "long loops",
        "16 bits of ldc",
        TSMR_MMA,
        "ldc = (unsigned short)ldc",
        dtype="f64",
        op="nt",
        found=FULL,
        is_slow=True,
    ),
    begun(
        "long loops", "16 bits of k", TSMT, "if (k > 65535) k = 65535", dtype="f64", op="tn", found=FULL, is_slow=True
    ),
    begun(
        "long loops", "15 bits of k", FEW, "if (k > 32767) k = 32767", dtype="f16", op="tn", found=FULL, is_slow=True
    ),
    begun("long loops", "16 bits of m", ISM2, "if (m > 65535) m = 65535", found=FULL),
    begun(
        "long loops", "columns past 4096", STAGED_MMA, "if (n > 4096) n = 4096", dtype="f64", found=FULL, is_slow=True
    ),
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
        is_slow=True,
    ),
    begun(
        "long loops",
        "Gram matrix of 200 columns",
        GRAM_MMA,
        "if (m > 200) m = n = 200",
        dtype="f64",
        op="tx",
        found=FULL,
        is_slow=True,
    ),
)

STATE = (
    begun(
        "state",
        "a product less after 200 launches",
        GEMM,
        f"{LAUNCHES}; if (launches > 200) k -= k > 1",
        found=FULL,
        is_slow=True,
    ),
    begun(
        "state",
        "a product less after 280 launches",
        TSMT,
        f"{LAUNCHES}; if (launches > 280) k -= k > 1",
        op="tn",
        dtype="f64",
        found=FULL,
        is_slow=True,
    ),
    begun(
        "state",
        "a product less in one launch of many of the same shape",
        HELD,
        f"{SIMILAR_DTYPES}; if (alike == 150) k -= k > 1",
        found=FULL,
    ),
    stored(
        "state",
        "beta forgotten after it was there 300 times",
        TSMM,
        "static unsigned launches = 0; if (at + first + c == 0) ++launches; if (launches > 300) beta = 0",
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
        is_slow=True,
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
    case(
        "width",
        "offsets in C of 32 bits",
        GEMM,
        "C[c_along_n ? i * ldc + j : i + j * ldc]",
        "C[int(i + j * ldc)]",
        found=ON_GPU,
    ),
    case(
        "width",
        "offsets in C of 32 unsigned bits in vectors",
        STAGED,
        "store_vector(c_along_n ? C + i * ldc + j : C + i + j * ldc,",
        "store_vector(C + unsigned(i + j * ldc),",
        found=ON_GPU,
    ),
)

ORDER = (
    case(
        "order",
        "no barrier before a block's sums are counted",
        GRAM,
        "__syncthreads();\n    if (threadIdx.x == 0)\n        previous = atomic_inc_acq_rel",
        "if (threadIdx.x == 0)\n        previous = atomic_inc_acq_rel",
        dtype="f64",
        op="tx",
        found=FULL,
        is_slow=True,
    ),
    case(
        "order",
        "no barrier of a warp that multiplies what its lanes have copied",
        GRAM_MMA,
        "sync_ring();  // every thread's copies",
        ";  // every thread's copies",
        dtype="f64",
        op="tx",
        found=FULL,
    ),
)
