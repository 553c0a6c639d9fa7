/* The intercepted cuBLAS routines for matrix products: gemm, gemv, syrk, herk and their variants. */

#include <string.h>

#include "standin.h"

static struct asked product(enum routine routine, int type, int transa, int transb, int64_t m, int64_t n, int64_t k,
                            const void *alpha, const void *A, int64_t lda, const void *B, int64_t ldb, const void *beta,
                            void *C, int64_t ldc)
{
    return (struct asked){.routine = routine, .type = type, .transa = transa, .transb = transb, .m = m, .n = n, .k = k,
                          .alpha = alpha, .A = A, .lda = lda, .B = B, .ldb = ldb, .beta = beta, .C = C, .ldc = ldc,
                          .batches = 1, .unfit = NOT_LEFT};
}

/* Describe a batch with strides. */
static struct asked batched(struct asked asked, int64_t stride_a, int64_t stride_b, int64_t stride_c, int64_t count)
{
    asked.batches = count;
    if (count != 1)
        asked.stride_a = stride_a, asked.stride_b = stride_b, asked.stride_c = stride_c;
    return checked(asked);
}

/* Describe a batch whose matrices are given by arrays of pointers in device memory. They cannot be read without waiting
   for the GPU, so cuBLAS computes it. The arrays' addresses stand for those of the matrices. */
static struct asked by_pointers(struct asked asked, int64_t count)
{
    asked.batches = count;
    asked.unfit = POINTERS_ONLY;
    return asked;
}

/* The body of an intercepted routine: launch a kernel, or else call cuBLAS's routine. */
#define VISITED(symbol, handle, asked_for, ...)                                                                      \
    static _Atomic(void *) place;                                                                                    \
    struct visit visit;                                                                                              \
    const struct asked asked = asked_for;                                                                            \
    if (begin_visit(&visit, handle, &asked))                                                                         \
        return end_visit(&visit, CUBLAS_SUCCESS);                                                                    \
    void *found = cublas_function(#symbol, handle, &place);                                                          \
    memcpy(&next, &found, sizeof found);                                                                             \
    return end_visit(&visit, next == NULL ? CUBLAS_NOT_INITIALIZED : next(__VA_ARGS__))

#define GEMM_OF(symbol, integer, element)                                                                            \
    EXPORTED int symbol(cublas_handle handle, int transa, int transb, integer m, integer n, integer k,               \
                        const void *alpha, const void *A, integer lda, const void *B, integer ldb, const void *beta, \
                        void *C, integer ldc)                                                                        \
    {                                                                                                                \
        int (*next)(cublas_handle, int, int, integer, integer, integer, const void *, const void *, integer,         \
                    const void *, integer, const void *, void *, integer);                                           \
        VISITED(symbol, handle,                                                                                      \
                checked(product(GEMM, element, transa, transb, m, n, k, alpha, A, lda, B, ldb, beta, C, ldc)),       \
                handle, transa, transb, m, n, k, alpha, A, lda, B, ldb, beta, C, ldc);                               \
    }

#define GEMM_EX_OF(symbol, integer)                                                                                  \
    EXPORTED int symbol(cublas_handle handle, int transa, int transb, integer m, integer n, integer k,               \
                        const void *alpha, const void *A, int type_a, integer lda, const void *B, int type_b,        \
                        integer ldb, const void *beta, void *C, int type_c, integer ldc, int compute, int algorithm) \
    {                                                                                                                \
        int (*next)(cublas_handle, int, int, integer, integer, integer, const void *, const void *, int, integer,    \
                    const void *, int, integer, const void *, void *, int, integer, int, int);                       \
        const int type = type_of(type_a, type_b, type_c, compute);                                                   \
        VISITED(symbol, handle,                                                                                      \
                checked(product(GEMM_EX, type, transa, transb, m, n, k, alpha, A, lda, B, ldb, beta, C, ldc)),       \
                handle, transa, transb, m, n, k, alpha, A, type_a, lda, B, type_b, ldb, beta, C, type_c, ldc,        \
                compute, algorithm);                                                                                 \
    }

#define GEMM_STRIDED_OF(symbol, integer, element)                                                                    \
    EXPORTED int symbol(cublas_handle handle, int transa, int transb, integer m, integer n, integer k,               \
                        const void *alpha, const void *A, integer lda, long long stride_a, const void *B,            \
                        integer ldb, long long stride_b, const void *beta, void *C, integer ldc,                     \
                        long long stride_c, integer count)                                                           \
    {                                                                                                                \
        int (*next)(cublas_handle, int, int, integer, integer, integer, const void *, const void *, integer,         \
                    long long, const void *, integer, long long, const void *, void *, integer, long long, integer); \
        VISITED(symbol, handle,                                                                                      \
                batched(product(GEMM_STRIDED, element, transa, transb, m, n, k, alpha, A, lda, B, ldb, beta, C, ldc), \
                        stride_a, stride_b, stride_c, count),                                                        \
                handle, transa, transb, m, n, k, alpha, A, lda, stride_a, B, ldb, stride_b, beta, C, ldc, stride_c,  \
                count);                                                                                              \
    }

#define GEMM_STRIDED_EX_OF(symbol, integer)                                                                          \
    EXPORTED int symbol(cublas_handle handle, int transa, int transb, integer m, integer n, integer k,               \
                        const void *alpha, const void *A, int type_a, integer lda, long long stride_a,               \
                        const void *B, int type_b, integer ldb, long long stride_b, const void *beta, void *C,       \
                        int type_c, integer ldc, long long stride_c, integer count, int compute, int algorithm)      \
    {                                                                                                                \
        int (*next)(cublas_handle, int, int, integer, integer, integer, const void *, const void *, int, integer,    \
                    long long, const void *, int, integer, long long, const void *, void *, int, integer,            \
                    long long, integer, int, int);                                                                   \
        const int type = type_of(type_a, type_b, type_c, compute);                                                   \
        VISITED(symbol, handle,                                                                                      \
                batched(product(GEMM_STRIDED_EX, type, transa, transb, m, n, k, alpha, A, lda, B, ldb, beta, C, ldc), \
                        stride_a, stride_b, stride_c, count),                                                        \
                handle, transa, transb, m, n, k, alpha, A, type_a, lda, stride_a, B, type_b, ldb, stride_b, beta, C, \
                type_c, ldc, stride_c, count, compute, algorithm);                                                   \
    }

#define GEMM_POINTERS_OF(symbol, integer, element)                                                                   \
    EXPORTED int symbol(cublas_handle handle, int transa, int transb, integer m, integer n, integer k,               \
                        const void *alpha, const void *const A[], integer lda, const void *const B[], integer ldb,   \
                        const void *beta, void *const C[], integer ldc, integer count)                               \
    {                                                                                                                \
        int (*next)(cublas_handle, int, int, integer, integer, integer, const void *, const void *const[], integer,  \
                    const void *const[], integer, const void *, void *const[], integer, integer);                    \
        VISITED(symbol, handle,                                                                                      \
                by_pointers(product(GEMM_POINTERS, element, transa, transb, m, n, k, alpha, A, lda, B, ldb, beta,    \
                                    (void *)(uintptr_t)C, ldc), count),                                              \
                handle, transa, transb, m, n, k, alpha, A, lda, B, ldb, beta, C, ldc, count);                        \
    }

#define GEMM_POINTERS_EX_OF(symbol, integer)                                                                         \
    EXPORTED int symbol(cublas_handle handle, int transa, int transb, integer m, integer n, integer k,               \
                        const void *alpha, const void *const A[], int type_a, integer lda, const void *const B[],    \
                        int type_b, integer ldb, const void *beta, void *const C[], int type_c, integer ldc,         \
                        integer count, int compute, int algorithm)                                                   \
    {                                                                                                                \
        int (*next)(cublas_handle, int, int, integer, integer, integer, const void *, const void *const[], int,      \
                    integer, const void *const[], int, integer, const void *, void *const[], int, integer, integer,  \
                    int, int);                                                                                       \
        const int type = type_of(type_a, type_b, type_c, compute);                                                   \
        VISITED(symbol, handle,                                                                                      \
                by_pointers(product(GEMM_POINTERS_EX, type, transa, transb, m, n, k, alpha, A, lda, B, ldb, beta,    \
                                    (void *)(uintptr_t)C, ldc), count),                                              \
                handle, transa, transb, m, n, k, alpha, A, type_a, lda, B, type_b, ldb, beta, C, type_c, ldc, count, \
                compute, algorithm);                                                                                 \
    }

/* Describe gemv, y = alpha op(A) x + beta y, as a product with n = 1. If x has stride 1, it is a matrix of one column.
   Otherwise it is the transpose of a matrix of one row. y must have stride 1. */
static struct asked vector(int type, int trans, int64_t m, int64_t n, const void *alpha, const void *A, int64_t lda,
                           const void *x, int64_t step_x, const void *beta, void *y, int64_t step_y)
{
    const bool is_plain = trans == TSM2_N;
    const int64_t rows = is_plain ? m : n, depth = is_plain ? n : m;
    const bool is_dense = step_x == 1;
    struct asked asked = product(GEMV, type, trans, is_dense ? TSM2_N : TSM2_T, rows, 1, depth, alpha, A, lda, x,
                                 is_dense ? depth : step_x, beta, y, rows);
    asked.unfit = step_y == 1 && step_x > 0 ? NOT_LEFT : STRIDES;
    return checked(asked);
}

#define GEMV_OF(symbol, integer, element)                                                                            \
    EXPORTED int symbol(cublas_handle handle, int trans, integer m, integer n, const void *alpha, const void *A,     \
                        integer lda, const void *x, integer step_x, const void *beta, void *y, integer step_y)       \
    {                                                                                                                \
        int (*next)(cublas_handle, int, integer, integer, const void *, const void *, integer, const void *,         \
                    integer, const void *, void *, integer);                                                         \
        VISITED(symbol, handle, vector(element, trans, m, n, alpha, A, lda, x, step_x, beta, y, step_y), handle,     \
                trans, m, n, alpha, A, lda, x, step_x, beta, y, step_y);                                             \
    }

/* Describe syrk or herk: a triangle of C = alpha op(A) op(A)^T + beta C, for herk with the conjugate transpose. */
static struct asked triangle(enum routine routine, int type, cublas_handle handle, int uplo, int trans, int64_t n,
                             int64_t k, const void *alpha, const void *A, int64_t lda, const void *beta, void *C,
                             int64_t ldc)
{
    const int across = routine == HERK ? TSM2_C : TSM2_T;
    const bool is_known = (uplo == FILL_LOWER || uplo == FILL_UPPER) && (trans == TSM2_N || trans == across);
    const bool is_small = n <= MOST_OF_TRIANGLE && ldc <= INT32_MAX;
    struct asked asked = product(routine, type, trans, trans == TSM2_N ? across : TSM2_N, n, n, k, alpha, A, lda, A, lda,
                                 beta, C, ldc);
    asked.unfit = !is_known ? ZERO : !is_small ? NO_KERNEL : NOT_LEFT;
    asked.part = uplo == FILL_LOWER ? LOWER_C : UPPER_C;
    asked.handle = handle;
    return checked(asked);
}

#define TRIANGLE_OF(symbol, integer, routine, element)                                                               \
    EXPORTED int symbol(cublas_handle handle, int uplo, int trans, integer n, integer k, const void *alpha,          \
                        const void *A, integer lda, const void *beta, void *C, integer ldc)                          \
    {                                                                                                                \
        int (*next)(cublas_handle, int, int, integer, integer, const void *, const void *, integer, const void *,    \
                    void *, integer);                                                                                \
        VISITED(symbol, handle, triangle(routine, element, handle, uplo, trans, n, k, alpha, A, lda, beta, C, ldc),  \
                handle, uplo, trans, n, k, alpha, A, lda, beta, C, ldc);                                             \
    }

#define OF_TYPES(X)                                                                                                  \
    X(S, TSM2_F32) X(D, TSM2_F64) X(C, TSM2_C64) X(Z, TSM2_C128)
#define OF_TYPE(letter, element)                                                                                     \
    GEMM_OF(cublas##letter##gemm_v2, int, element)                                                                   \
    GEMM_OF(cublas##letter##gemm_v2_64, int64_t, element)                                                            \
    GEMM_STRIDED_OF(cublas##letter##gemmStridedBatched, int, element)                                                \
    GEMM_STRIDED_OF(cublas##letter##gemmStridedBatched_64, int64_t, element)                                         \
    GEMM_POINTERS_OF(cublas##letter##gemmBatched, int, element)                                                      \
    GEMM_POINTERS_OF(cublas##letter##gemmBatched_64, int64_t, element)                                               \
    GEMV_OF(cublas##letter##gemv_v2, int, element)                                                                   \
    GEMV_OF(cublas##letter##gemv_v2_64, int64_t, element)                                                            \
    TRIANGLE_OF(cublas##letter##syrk_v2, int, SYRK, element)                                                         \
    TRIANGLE_OF(cublas##letter##syrk_v2_64, int64_t, SYRK, element)
OF_TYPES(OF_TYPE)
TRIANGLE_OF(cublasCherk_v2, int, HERK, TSM2_C64)
TRIANGLE_OF(cublasCherk_v2_64, int64_t, HERK, TSM2_C64)
TRIANGLE_OF(cublasZherk_v2, int, HERK, TSM2_C128)
TRIANGLE_OF(cublasZherk_v2_64, int64_t, HERK, TSM2_C128)
GEMM_EX_OF(cublasGemmEx, int)
GEMM_EX_OF(cublasGemmEx_64, int64_t)
GEMM_STRIDED_EX_OF(cublasGemmStridedBatchedEx, int)
GEMM_STRIDED_EX_OF(cublasGemmStridedBatchedEx_64, int64_t)
GEMM_POINTERS_EX_OF(cublasGemmBatchedEx, int)
GEMM_POINTERS_EX_OF(cublasGemmBatchedEx_64, int64_t)
