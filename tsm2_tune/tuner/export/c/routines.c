/* The library's functions for products: each describes its arguments as a `struct call`. */

#include "handle.h"

#define PRODUCT(name, type, factor, element)                                                                         \
    EXPORTED tsm2_status tsm2_gemm_##name(tsm2_handle handle, tsm2_operation transa, tsm2_operation transb,          \
                                          int64_t m, int64_t n, int64_t k, const factor *alpha, const element *A,    \
                                          int64_t lda, const element *B, int64_t ldb, const factor *beta,            \
                                          element *C, int64_t ldc)                                                   \
    {                                                                                                                \
        const struct call call = {SINGLE, type, transa, transb, m,   n, k, alpha, A, lda,                            \
                                  B,      ldb,  beta,   C,      ldc, 0, 0, 0,     1};                                \
        return multiply(handle, &call);                                                                              \
    }                                                                                                                \
                                                                                                                     \
    EXPORTED tsm2_status tsm2_gemm_##name##_strided_batched(                                                         \
        tsm2_handle handle, tsm2_operation transa, tsm2_operation transb, int64_t m, int64_t n, int64_t k,           \
        const factor *alpha, const element *A, int64_t lda, int64_t stride_a, const element *B, int64_t ldb,         \
        int64_t stride_b, const factor *beta, element *C, int64_t ldc, int64_t stride_c, int64_t batch_count)        \
    {                                                                                                                \
        const struct call call = {STRIDED, type, transa, transb, m,   n,        k,        alpha,    A,          lda, \
                                  B,       ldb,  beta,   C,      ldc, stride_a, stride_b, stride_c, batch_count};    \
        return multiply(handle, &call);                                                                              \
    }                                                                                                                \
                                                                                                                     \
    EXPORTED tsm2_status tsm2_gemm_##name##_batched(                                                                 \
        tsm2_handle handle, tsm2_operation transa, tsm2_operation transb, int64_t m, int64_t n, int64_t k,           \
        const factor *alpha, const element *const A[], int64_t lda, const element *const B[], int64_t ldb,           \
        const factor *beta, element *const C[], int64_t ldc, int64_t batch_count)                                    \
    {                                                                                                                \
        struct call call = {POINTERS, type, transa, transb, m,   n, k, alpha, NULL,       lda,                       \
                            NULL,     ldb,  beta,   NULL,   ldc, 0, 0, 0,     batch_count};                          \
        return multiply_by_pointers(handle, &call, (const void *const *)A, (const void *const *)B,                   \
                                    (void *const *)C);                                                               \
    }

static tsm2_status multiply_by_pointers(tsm2_handle handle, struct call *call, const void *const A[],
                                        const void *const B[], void *const C[])
{
    int has_elements;
    TRY(begin(handle, call, &has_elements));
    if (!has_elements)
        return TSM2_SUCCESS;
    TRY(read_pointers(handle, call, A, B, C));
    return multiply(handle, call);
}

PRODUCT(f32, TSM2_F32, float, float)
PRODUCT(f64, TSM2_F64, double, double)
PRODUCT(c64, TSM2_C64, void, void)
PRODUCT(c128, TSM2_C128, void, void)
PRODUCT(bf16, TSM2_BF16, float, void)
PRODUCT(f16, TSM2_F16, float, void)

/* The call of a question, without factors and C. */
#define ASKED(form, stride_a, stride_b, stride_c, batch_count)                                                       \
    {                                                                                                                \
        form, type, transa, transb, m, n, k, NULL, A, lda, B, ldb, NULL, NULL, ldc, stride_a, stride_b, stride_c,    \
            batch_count                                                                                              \
    }

static tsm2_status tell_choice(tsm2_handle handle, const struct call *call, char *text, size_t bytes)
{
    struct core_choice choice;
    if (handle == NULL || text == NULL || bytes == 0)
        return TSM2_INVALID_VALUE;
    text[0] = '\0';
    TRY(ask(handle, call, &choice));
    core_explain(handle->pack, &choice, handle->device, text, bytes);
    return TSM2_SUCCESS;
}

EXPORTED tsm2_status tsm2_choice(tsm2_handle handle, tsm2_type type, tsm2_operation transa, tsm2_operation transb,
                                 int64_t m, int64_t n, int64_t k, const void *A, int64_t lda, const void *B,
                                 int64_t ldb, int64_t ldc, char *text, size_t bytes)
{
    const struct call call = ASKED(SINGLE, 0, 0, 0, 1);
    return tell_choice(handle, &call, text, bytes);
}

EXPORTED tsm2_status tsm2_choice_strided_batched(tsm2_handle handle, tsm2_type type, tsm2_operation transa,
                                                 tsm2_operation transb, int64_t m, int64_t n, int64_t k, const void *A,
                                                 int64_t lda, int64_t stride_a, const void *B, int64_t ldb,
                                                 int64_t stride_b, int64_t ldc, int64_t stride_c, int64_t batch_count,
                                                 char *text, size_t bytes)
{
    const struct call call = ASKED(STRIDED, stride_a, stride_b, stride_c, batch_count);
    return tell_choice(handle, &call, text, bytes);
}

static tsm2_status compare(tsm2_handle handle, const struct call *call, double *us, double *cublas_us, int *is_slower)
{
    struct core_choice choice;
    if (handle == NULL || us == NULL || cublas_us == NULL || is_slower == NULL)
        return TSM2_INVALID_VALUE;
    *us = *cublas_us = 0;
    *is_slower = 1;
    TRY(ask(handle, call, &choice));
    TRY(check_launch(handle, &choice));
    TRY(find_kernel(handle, choice.kernel, choice.index_bits == 64));
    *us = choice.us;
    *cublas_us = choice.vendor_us;
    *is_slower = choice.is_vendors;
    return TSM2_SUCCESS;
}

EXPORTED tsm2_status tsm2_compare(tsm2_handle handle, tsm2_type type, tsm2_operation transa, tsm2_operation transb,
                                  int64_t m, int64_t n, int64_t k, const void *A, int64_t lda, const void *B,
                                  int64_t ldb, int64_t ldc, double *us, double *cublas_us, int *is_slower)
{
    const struct call call = ASKED(SINGLE, 0, 0, 0, 1);
    return compare(handle, &call, us, cublas_us, is_slower);
}

EXPORTED tsm2_status tsm2_compare_strided_batched(tsm2_handle handle, tsm2_type type, tsm2_operation transa,
                                                  tsm2_operation transb, int64_t m, int64_t n, int64_t k, const void *A,
                                                  int64_t lda, int64_t stride_a, const void *B, int64_t ldb,
                                                  int64_t stride_b, int64_t ldc, int64_t stride_c, int64_t batch_count,
                                                  double *us, double *cublas_us, int *is_slower)
{
    const struct call call = ASKED(STRIDED, stride_a, stride_b, stride_c, batch_count);
    return compare(handle, &call, us, cublas_us, is_slower);
}

static tsm2_status tell_workspace(tsm2_handle handle, const struct call *call, size_t *bytes)
{
    struct core_choice choice;
    if (handle == NULL || bytes == NULL)
        return TSM2_INVALID_VALUE;
    *bytes = 0;
    TRY(ask(handle, call, &choice));
    TRY(check_launch(handle, &choice));
    *bytes = whole_workspace_bytes(choice.partials_bytes, choice.counters_bytes);
    return TSM2_SUCCESS;
}

EXPORTED tsm2_status tsm2_workspace_size(tsm2_handle handle, tsm2_type type, tsm2_operation transa,
                                         tsm2_operation transb, int64_t m, int64_t n, int64_t k, const void *A,
                                         int64_t lda, const void *B, int64_t ldb, int64_t ldc, size_t *bytes)
{
    const struct call call = ASKED(SINGLE, 0, 0, 0, 1);
    return tell_workspace(handle, &call, bytes);
}

EXPORTED tsm2_status tsm2_workspace_size_strided_batched(tsm2_handle handle, tsm2_type type, tsm2_operation transa,
                                                         tsm2_operation transb, int64_t m, int64_t n, int64_t k,
                                                         const void *A, int64_t lda, int64_t stride_a, const void *B,
                                                         int64_t ldb, int64_t stride_b, int64_t ldc, int64_t stride_c,
                                                         int64_t batch_count, size_t *bytes)
{
    const struct call call = ASKED(STRIDED, stride_a, stride_b, stride_c, batch_count);
    return tell_workspace(handle, &call, bytes);
}
