#include "handle.h"

/* Positions of a product's arguments; the handle is the first. */
enum { TRANSA = 2, TRANSB, M, N, K, ALPHA, A, LDA };

/* Positions of the other arguments, and names of those that say where the next matrix is. */
struct positions {
    int stride_a, b, ldb, stride_b, beta, c, ldc, stride_c, batch_count;
    const char *steps[CORE_MATRICES];
};
static const struct positions positions_of[] = {
    [SINGLE] = {0, 10, 11, 0, 12, 13, 14, 0, 0, {NULL, NULL, NULL}},
    [STRIDED] = {10, 11, 12, 13, 14, 15, 16, 17, 18, {"stride_a", "stride_b", "stride_c"}},
    [POINTERS] = {8, 10, 11, 10, 12, 13, 14, 13, 15, {"A", "B", "C"}},
};

static tsm2_status check_operation(tsm2_handle handle, int number, const char *name, int operation)
{
    if (operation >= TSM2_N && operation <= TSM2_C)
        return TSM2_SUCCESS;
    return fail(handle, TSM2_INVALID_VALUE, "argument %d, %s: %d is no operation", number, name, operation);
}

static tsm2_status check_at_least(tsm2_handle handle, int number, const char *name, int64_t value, int64_t least)
{
    if (value >= least)
        return TSM2_SUCCESS;
    return fail(handle, TSM2_INVALID_VALUE, "argument %d, %s: %lld, expected at least %lld", number, name,
                (long long)value, (long long)least);
}

/* A leading dimension for columns of so many rows. */
static tsm2_status check_leading(tsm2_handle handle, int number, const char *name, int64_t ld, int64_t rows,
                                 int64_t columns)
{
    TRY(check_at_least(handle, number, name, ld, rows > 1 ? rows : 1));
    if (columns > 0 && ld > INT64_MAX / 16 / columns)
        return fail(handle, TSM2_INVALID_VALUE, "argument %d, %s: %lld times %lld columns is more than any memory",
                    number, name, (long long)ld, (long long)columns);
    return TSM2_SUCCESS;
}

tsm2_status check_shapes(tsm2_handle handle, const struct call *call)
{
    TRY(check_operation(handle, TRANSA, "transa", (int)call->transa));
    TRY(check_operation(handle, TRANSB, "transb", (int)call->transb));
    const int plain_a = call->transa == TSM2_N, plain_b = call->transb == TSM2_N;
    const int64_t m = call->m, n = call->n, k = call->k;
    const struct positions *at = &positions_of[call->form];
    TRY(check_at_least(handle, M, "m", m, 0));
    TRY(check_at_least(handle, N, "n", n, 0));
    TRY(check_at_least(handle, K, "k", k, 0));
    TRY(check_leading(handle, LDA, "lda", call->lda, plain_a ? m : k, plain_a ? k : m));
    TRY(check_leading(handle, at->ldb, "ldb", call->ldb, plain_b ? k : n, plain_b ? n : k));
    TRY(check_leading(handle, at->ldc, "ldc", call->ldc, m, n));
    return check_at_least(handle, at->batch_count, "batch_count", call->batch_count, 0);
}

/* The distance from a matrix to that of the next product. */
static tsm2_status check_stride(tsm2_handle handle, int number, const char *name, int64_t stride, int64_t batch_count)
{
    TRY(check_at_least(handle, number, name, stride, 0));
    if (stride > INT64_MAX / 16 / batch_count)
        return fail(handle, TSM2_INVALID_VALUE, "argument %d, %s: %lld times %lld products is more than any memory",
                    number, name, (long long)stride, (long long)batch_count);
    return TSM2_SUCCESS;
}

tsm2_status check_strides(tsm2_handle handle, const struct call *call)
{
    const struct positions *at = &positions_of[call->form];
    const int64_t batch_count = call->batch_count, stride = call->stride_c, m = call->m;
    if (batch_count < 2)
        return TSM2_SUCCESS;
    TRY(check_stride(handle, at->stride_a, at->steps[CORE_A], call->stride_a, batch_count));
    TRY(check_stride(handle, at->stride_b, at->steps[CORE_B], call->stride_b, batch_count));
    TRY(check_stride(handle, at->stride_c, at->steps[CORE_C], stride, batch_count));
    const int64_t whole = call->ldc * (call->n - 1) + m; /* from the first to the last element of a matrix */
    const int are_side_by_side = stride >= m && (batch_count - 1) * stride + m <= call->ldc;
    if (stride >= whole || are_side_by_side)
        return TSM2_SUCCESS;
    return fail(handle, TSM2_INVALID_VALUE,
                "argument %d, %s: %lld elements from a matrix of C to the next, expected at least %lld, since they must"
                " not overlap",
                at->stride_c, at->steps[CORE_C], (long long)stride, (long long)whole);
}

static tsm2_status check_address(tsm2_handle handle, int number, const char *name, const void *address, int64_t bytes)
{
    if (address == NULL)
        return fail(handle, TSM2_INVALID_VALUE, "argument %d, %s: it is NULL", number, name);
    if ((uintptr_t)address % (uintptr_t)bytes != 0)
        return fail(handle, TSM2_INVALID_VALUE, "argument %d, %s: its address is not a multiple of %d bytes", number,
                    name, (int)bytes);
    return TSM2_SUCCESS;
}

tsm2_status check_addresses(tsm2_handle handle, const struct call *call)
{
    const struct positions *at = &positions_of[call->form];
    const int64_t bytes = core_element_bytes((int)call->type);
    TRY(check_address(handle, ALPHA, "alpha", call->alpha, 1));
    if (call->k > 0) {
        TRY(check_address(handle, A, "A", call->A, bytes));
        TRY(check_address(handle, at->b, "B", call->B, bytes));
    }
    TRY(check_address(handle, at->beta, "beta", call->beta, 1));
    return check_address(handle, at->c, "C", call->C, bytes);
}
