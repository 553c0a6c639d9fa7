/* Checks of a product's arguments: type, extents, alpha and beta, overlapping matrices. */

#include <string.h>

#include "standin.h"

int element_bytes(int type)
{
    static const int bytes[] = {4, 8, 8, 16, 2, 2};
    return bytes[type];
}

int type_of(int a, int b, int c, int compute)
{
    const bool is_single = compute == COMPUTE_32F || compute == COMPUTE_32F_PEDANTIC;
    const bool is_double = compute == COMPUTE_64F || compute == COMPUTE_64F_PEDANTIC;
    if (a != b || a != c || !(is_single || is_double))
        return -1;
    switch (a) {
    case R_32F:
        return is_single ? (int)TSM2_F32 : -1;
    case C_32F:
        return is_single ? (int)TSM2_C64 : -1;
    case R_16BF:
        return is_single ? (int)TSM2_BF16 : -1;
    case R_16F:
        return is_single ? (int)TSM2_F16 : -1;
    case R_64F:
        return is_double ? (int)TSM2_F64 : -1;
    case C_64F:
        return is_double ? (int)TSM2_C128 : -1;
    default:
        return -1;
    }
}

struct asked checked(struct asked asked)
{
    const bool a_is_plain = asked.transa == TSM2_N, b_is_plain = asked.transb == TSM2_N;
    const int64_t m = asked.m, n = asked.n, k = asked.k;
    const bool is_known = asked.transa >= TSM2_N && asked.transa <= TSM2_C && asked.transb >= TSM2_N && asked.transb <= TSM2_C;
    if (asked.unfit != NOT_LEFT)
        return asked;
    if (!is_known || m < 1 || n < 1 || k < 1 || asked.lda < (a_is_plain ? m : k) || asked.ldb < (b_is_plain ? k : n) ||
        asked.ldc < m || asked.batches < 1)
        asked.unfit = ZERO;
    return asked;
}

bool is_zero(const struct asked *asked, const void *factor)
{
    double parts[2] = {0, 0};
    float small[2] = {0, 0};
    const bool is_complex = (asked->type == TSM2_C64 || asked->type == TSM2_C128) && asked->routine != HERK;
    if (asked->type == TSM2_F64 || asked->type == TSM2_C128) {
        memcpy(parts, factor, is_complex ? sizeof parts : sizeof *parts);
        return parts[0] == 0 && parts[1] == 0;
    }
    memcpy(small, factor, is_complex ? sizeof small : sizeof *small);
    return small[0] == 0 && small[1] == 0;
}

const void *pack_factor(const struct asked *asked, const void *factor, void *parts)
{
    if (asked->routine != HERK)
        return factor;
    const size_t bytes = (size_t)element_bytes(asked->type);
    memset(parts, 0, bytes);
    memcpy(parts, factor, bytes / 2);
    return parts;
}

struct span {
    uintptr_t begin, end;
};

static struct span span_of(const void *address, int64_t ld, int64_t rows, int64_t columns, int64_t stride,
                           const struct asked *asked)
{
    const uintptr_t begin = (uintptr_t)address;
    const int64_t elements = (asked->batches - 1) * stride + (columns - 1) * ld + rows;
    const struct span span = {begin, begin + (uintptr_t)(elements * element_bytes(asked->type))};
    return span;
}

static bool share(struct span x, struct span y) { return x.begin < y.end && y.begin < x.end; }

bool overlaps(const struct asked *asked)
{
    const bool a_is_plain = asked->transa == TSM2_N, b_is_plain = asked->transb == TSM2_N;
    const int64_t m = asked->m, n = asked->n, k = asked->k;
    const struct span a = span_of(asked->A, asked->lda, a_is_plain ? m : k, a_is_plain ? k : m, asked->stride_a, asked);
    const struct span b = span_of(asked->B, asked->ldb, b_is_plain ? k : n, b_is_plain ? n : k, asked->stride_b, asked);
    const struct span c = span_of(asked->C, asked->ldc, m, n, asked->stride_c, asked);
    return share(c, a) || share(c, b);
}
