/* Products: their choice, their launch. */

#include <limits.h>
#include <string.h>

#include "handle.h"
#include "predict.h"
#include "launch.h"

enum { ARGUMENTS = 13 };

/* A kernel's argument. The longest member is first: with {0} some compilers clear only the first. */
union argument {
    unsigned char factor[16];
    int64_t wide;
    int32_t narrow;
    uint64_t address;
};

/* The property of a matrix on which the choice depends, in a storage order: that it does not have this order, or the
   widest vector, of a power of two of bytes, of which its lines are multiples. */
enum { KINDS_OF_LINES = 6 };
static int kind_of_lines(const struct product *product, int x, int order)
{
    int kind = 1;
    const int64_t ld = product->matrices[x].ld[order], bytes = ld * element_bytes((tsm2_type)product->type);
    for (int vector = 2; vector <= VECTOR_BYTES && bytes % vector == 0; vector *= 2)
        ++kind;
    return ld == 0 ? 0 : kind;
}

/* The winner for the product, from the cache of choices or chosen now. */
static struct match chosen(tsm2_handle handle, const struct product *product)
{
    struct cached_choice now = {{product->m, product->n, product->k, product->type}, {.winner = NULL}};
    int64_t facts = product->is_gram;
    uint64_t place = 0;
    for (int x = 0; x < 3; ++x)
        for (int order = 0; order < ORDERS; ++order)
            facts = facts * KINDS_OF_LINES + kind_of_lines(product, x, order);
    now.key[3] += (facts * 4 + product->conjugates[0] * 2 + product->conjugates[1]) * 8;
    for (int i = 0; i < 4; ++i)
        place = (place ^ (uint64_t)now.key[i]) * 0x9e3779b97f4a7c15u;
    struct cached_choice *first = &handle->choices[(place >> 32) % (CHOICES / WAYS) * WAYS], *free = NULL;
    for (int way = 0; way < WAYS; ++way) {
        if (first[way].match.winner == NULL)
            free = free == NULL ? &first[way] : free;
        else if (memcmp(first[way].key, now.key, sizeof now.key) == 0)
            return first[way].match;
    }
    now.match = choose(product, handle->device);
    if (free == NULL)
        free = &first[handle->evictions++ % WAYS];
    if (now.match.winner != NULL)
        *free = now;
    return now.match;
}

static union argument index_of(int64_t value, int width)
{
    union argument argument = {0};
    if (width == 0)
        argument.narrow = (int32_t)value;
    else
        argument.wide = value;
    return argument;
}

static union argument address_of(uint64_t address)
{
    union argument argument = {0};
    argument.address = address;
    return argument;
}

static union argument factor_of(const void *factor, int64_t bytes)
{
    union argument argument = {0};
    memcpy(argument.factor, factor, (size_t)bytes);
    return argument;
}

/* Start the winner's kernel. */
static tsm2_status start(tsm2_handle handle, const struct call *call, const struct product *oriented,
                         const struct match *match)
{
    const struct winner *winner = match->winner;
    const struct launch *launch = &match->launch;
    const uint64_t x = launch_blocks_x(launch, (uint64_t)oriented->m, (uint64_t)oriented->n);
    if (x > INT_MAX)
        return fail(handle, TSM2_NOT_SUPPORTED, "%s needs more blocks than a grid has", winner->config);
    const int width = index_width(oriented, winner);
    cu_function function = NULL;
    TRY(load_kernel(handle, winner, width, &function));
    struct workspace workspace = {0, 0, 0, 0};
    if (launch->has_workspace)
        TRY(take_workspace(handle, partials_bytes(launch, oriented), counters_bytes(launch, oriented), &workspace));
    const struct matrix *a = &oriented->matrices[0], *b = &oriented->matrices[1], *c = &oriented->matrices[2];
    union argument arguments[ARGUMENTS] = {
        index_of(oriented->m, width),
        index_of(oriented->n, width),
        index_of(oriented->k, width),
        factor_of(call->alpha, sum_bytes(call->type)),
        address_of((uintptr_t)a->address),
        index_of(a->ld[winner->orders[0]], width),
        address_of((uintptr_t)b->address),
        index_of(b->ld[winner->orders[1]], width),
        factor_of(call->beta, sum_bytes(call->type)),
        address_of((uintptr_t)c->address),
        index_of(c->ld[winner->orders[2]], width),
        address_of(workspace.partials),
        address_of(workspace.counters),
    };
    void *parameters[ARGUMENTS];
    for (int i = 0; i < ARGUMENTS; ++i)
        parameters[i] = &arguments[i];
    const cu_result result =
        handle->driver.launch(function, (unsigned)x, (unsigned)launch_blocks_y(launch), 1, (unsigned)launch->threads, 1,
                              1, (unsigned)launch->smem_bytes, handle->stream, parameters, NULL);
    return answered(handle, "cuLaunchKernel", result);
}

/* Whether the factor equals this real number. */
static int is_number(const struct call *call, const void *factor, double number)
{
    if (call->type == TSM2_F64 || call->type == TSM2_C128) {
        double parts[2] = {0, 0};
        memcpy(parts, factor, (size_t)sum_bytes(call->type));
        return parts[0] == number && parts[1] == 0;
    }
    float parts[2] = {0, 0};
    memcpy(parts, factor, (size_t)sum_bytes(call->type));
    return (double)parts[0] == number && parts[1] == 0;
}

/* C = beta C, for k = 0 or alpha = 0. A and B are not read. */
static tsm2_status scale(tsm2_handle handle, const struct call *call)
{
    if (is_number(call, call->beta, 1))
        return TSM2_SUCCESS;
    if (!is_number(call, call->beta, 0))
        return fail(handle, TSM2_NOT_SUPPORTED, "no kernel scales C: with k = 0 or alpha = 0 beta must be 0 or 1");
    const size_t bytes = (size_t)element_bytes(call->type);
    const size_t pitch = (size_t)call->ldc * bytes, width = (size_t)call->m * bytes, height = (size_t)call->n;
    return answered(handle, "cuMemsetD2D8Async",
                    handle->driver.set_lines((uintptr_t)call->C, pitch, 0, width, height, handle->stream));
}

/* Find the product, as the winner computes it, and the match. The product has elements. */
static tsm2_status find(tsm2_handle handle, const struct call *call, struct product *oriented, struct match *match)
{
    *oriented = product_of(call);
    *match = chosen(handle, oriented);
    if (match->winner == NULL) {
        describe_lack(call, handle->error, sizeof handle->error);
        return TSM2_NOT_SUPPORTED;
    }
    if (match->swapped)
        *oriented = transposed_product(oriented);
    return TSM2_SUCCESS;
}

static tsm2_status multiply(tsm2_handle handle, struct call call)
{
    struct product oriented;
    struct match match = {.winner = NULL};
    if (handle == NULL)
        return TSM2_INVALID_VALUE;
    handle->error[0] = '\0';
    TRY(check_shapes(handle, &call));
    if (call.m == 0 || call.n == 0)
        return TSM2_SUCCESS;
    TRY(check_addresses(handle, &call));
    const int reads = call.k > 0 && !is_number(&call, call.alpha, 0);
    if (reads)
        TRY(find(handle, &call, &oriented, &match));
    int has_entered;
    TRY(enter(handle, &has_entered));
    const tsm2_status status =
        reads ? start(handle, &call, &oriented, &match) : scale(handle, &call);
    return leave(handle, has_entered, status);
}

#define PRODUCT(name, type, factor, element)                                                                         \
    EXPORTED tsm2_status tsm2_gemm_##name(tsm2_handle handle, tsm2_operation transa, tsm2_operation transb,          \
                                          int64_t m, int64_t n, int64_t k, const factor *alpha, const element *A,    \
                                          int64_t lda, const element *B, int64_t ldb, const factor *beta,            \
                                          element *C, int64_t ldc)                                                   \
    {                                                                                                                \
        const struct call call = {type, transa, transb, m, n, k, alpha, A, lda, B, ldb, beta, C, ldc};               \
        return multiply(handle, call);                                                                               \
    }

PRODUCT(f32, TSM2_F32, float, float)
PRODUCT(f64, TSM2_F64, double, double)
PRODUCT(c64, TSM2_C64, void, void)
PRODUCT(c128, TSM2_C128, void, void)
PRODUCT(bf16, TSM2_BF16, float, void)
PRODUCT(f16, TSM2_F16, float, void)

/* Find what a call would start, without starting it. */
static tsm2_status ask(tsm2_handle handle, const struct call *call, struct product *oriented, struct match *match)
{
    handle->error[0] = '\0';
    if ((int)call->type < TSM2_F32 || call->type > TSM2_F16)
        return fail(handle, TSM2_INVALID_VALUE, "type: %d is none", (int)call->type);
    TRY(check_shapes(handle, call));
    if (call->m == 0 || call->n == 0 || call->k == 0)
        return fail(handle, TSM2_NOT_SUPPORTED, "an extent is 0: no kernel computes that");
    return find(handle, call, oriented, match);
}

EXPORTED tsm2_status tsm2_choice(tsm2_handle handle, tsm2_type type, tsm2_operation transa, tsm2_operation transb,
                                 int64_t m, int64_t n, int64_t k, const void *A, int64_t lda, const void *B,
                                 int64_t ldb, int64_t ldc, char *text, size_t bytes)
{
    const struct call call = {type, transa, transb, m, n, k, NULL, A, lda, B, ldb, NULL, NULL, ldc};
    struct product oriented;
    struct match match;
    if (handle == NULL || text == NULL || bytes == 0)
        return TSM2_INVALID_VALUE;
    text[0] = '\0';
    TRY(ask(handle, &call, &oriented, &match));
    describe_match(&match, handle->device, text, bytes);
    return TSM2_SUCCESS;
}

EXPORTED tsm2_status tsm2_compare(tsm2_handle handle, tsm2_type type, tsm2_operation transa, tsm2_operation transb,
                                  int64_t m, int64_t n, int64_t k, const void *A, int64_t lda, const void *B,
                                  int64_t ldb, int64_t ldc, double *us, double *cublas_us, int *is_slower)
{
    const struct call call = {type, transa, transb, m, n, k, NULL, A, lda, B, ldb, NULL, NULL, ldc};
    struct product oriented;
    struct match match;
    if (handle == NULL || us == NULL || cublas_us == NULL || is_slower == NULL)
        return TSM2_INVALID_VALUE;
    *us = *cublas_us = 0;
    *is_slower = 1;
    TRY(ask(handle, &call, &oriented, &match));
    TRY(find_kernel(handle, match.winner, index_width(&oriented, match.winner)));
    *us = match.expected_us;
    *cublas_us = match.vendor_us;
    *is_slower = loses(&match);
    return TSM2_SUCCESS;
}

EXPORTED tsm2_status tsm2_workspace_size(tsm2_handle handle, tsm2_type type, tsm2_operation transa,
                                         tsm2_operation transb, int64_t m, int64_t n, int64_t k, const void *A,
                                         int64_t lda, const void *B, int64_t ldb, int64_t ldc, size_t *bytes)
{
    const struct call call = {type, transa, transb, m, n, k, NULL, A, lda, B, ldb, NULL, NULL, ldc};
    struct product oriented;
    struct match match;
    if (handle == NULL || bytes == NULL)
        return TSM2_INVALID_VALUE;
    *bytes = 0;
    TRY(ask(handle, &call, &oriented, &match));
    const struct launch *launch = &match.launch;
    *bytes = whole_workspace_bytes(partials_bytes(launch, &oriented), counters_bytes(launch, &oriented));
    return TSM2_SUCCESS;
}
