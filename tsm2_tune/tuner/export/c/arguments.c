#include "handle.h"

/* Positions of a product's arguments; the handle is the first. */
enum { TRANSA = 2, TRANSB, M, N, K, ALPHA, A, LDA, B, LDB, BETA, C, LDC };

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
    TRY(check_at_least(handle, M, "m", m, 0));
    TRY(check_at_least(handle, N, "n", n, 0));
    TRY(check_at_least(handle, K, "k", k, 0));
    TRY(check_leading(handle, LDA, "lda", call->lda, plain_a ? m : k, plain_a ? k : m));
    TRY(check_leading(handle, LDB, "ldb", call->ldb, plain_b ? k : n, plain_b ? n : k));
    return check_leading(handle, LDC, "ldc", call->ldc, m, n);
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
    const int64_t bytes = core_element_bytes((int)call->type);
    TRY(check_address(handle, ALPHA, "alpha", call->alpha, 1));
    if (call->k > 0) {
        TRY(check_address(handle, A, "A", call->A, bytes));
        TRY(check_address(handle, B, "B", call->B, bytes));
    }
    TRY(check_address(handle, BETA, "beta", call->beta, 1));
    return check_address(handle, C, "C", call->C, bytes);
}
