/* Products: their choice, their launch. */

#include <string.h>

#include "handle.h"

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
enum { KINDS_OF_LINES = 6, WIDEST_VECTOR_BYTES = 16 };
static int kind_of_lines(const struct core_product *product, int x, int order)
{
    int kind = 1;
    const int64_t ld = product->ld[x][order], bytes = ld * core_element_bytes(product->type);
    for (int vector = 2; vector <= WIDEST_VECTOR_BYTES && bytes % vector == 0; vector *= 2)
        ++kind;
    return ld == 0 ? 0 : kind;
}

/* The choice for the product, from the cache of choices or made now. Products with other leading
   dimensions may share an entry, so these are set anew. */
static struct core_choice chosen(tsm2_handle handle, const struct core_product *product)
{
    struct cached_choice now = {{product->m, product->n, product->k, product->type}, {0}};
    int64_t facts = product->is_gram;
    uint64_t place = 0;
    for (int x = 0; x < CORE_MATRICES; ++x)
        for (int order = 0; order < CORE_ORDERS; ++order)
            facts = facts * KINDS_OF_LINES + kind_of_lines(product, x, order);
    now.key[3] += (facts * 4 + product->conjugates[0] * 2 + product->conjugates[1]) * 16;
    for (int i = 0; i < 4; ++i)
        place = (place ^ (uint64_t)now.key[i]) * 0x9e3779b97f4a7c15u;
    struct cached_choice *first = &handle->choices[(place >> 32) % (CHOICES / WAYS) * WAYS], *free = NULL;
    for (int way = 0; way < WAYS; ++way) {
        if (first[way].choice.reason == CORE_NO_KERNEL)
            free = free == NULL ? &first[way] : free;
        else if (memcmp(first[way].key, now.key, sizeof now.key) == 0) {
            struct core_choice found = first[way].choice;
            core_set_leading_dimensions(handle->pack, product, &found);
            return found;
        }
    }
    now.choice = core_choose(handle->pack, product, handle->device_index);
    if (free == NULL)
        free = &first[handle->evictions++ % WAYS];
    if (now.choice.reason != CORE_NO_KERNEL)
        *free = now;
    return now.choice;
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

/* Refuse a launch that is larger than CUDA allows. */
static tsm2_status check_launch(tsm2_handle handle, const struct core_choice *choice)
{
    if (!choice->is_too_large)
        return TSM2_SUCCESS;
    return fail(handle, TSM2_NOT_SUPPORTED, "%s needs more blocks than a grid has, or more workspace than a memory",
                core_text(handle->pack, handle->pack->kernels[choice->kernel].configuration));
}

/* Start the chosen kernel. */
static tsm2_status start(tsm2_handle handle, const struct call *call, const struct core_choice *choice)
{
    const struct core_kernel *kernel = &handle->pack->kernels[choice->kernel];
    const int width = choice->index_bits == 64;
    cu_function function = NULL;
    TRY(check_launch(handle, choice));
    TRY(load_kernel(handle, choice->kernel, width, &function));
    struct workspace workspace = {0, 0, 0, 0};
    if (kernel->has_workspace)
        TRY(take_workspace(handle, choice->partials_bytes, choice->counters_bytes, &workspace));
    const void *a = choice->is_transposed ? call->B : call->A, *b = choice->is_transposed ? call->A : call->B;
    union argument arguments[ARGUMENTS] = {
        index_of(choice->extents[0], width),
        index_of(choice->extents[1], width),
        index_of(choice->extents[2], width),
        factor_of(call->alpha, core_sum_bytes((int)call->type)),
        address_of((uintptr_t)a),
        index_of(choice->ld[CORE_A], width),
        address_of((uintptr_t)b),
        index_of(choice->ld[CORE_B], width),
        factor_of(call->beta, core_sum_bytes((int)call->type)),
        address_of((uintptr_t)call->C),
        index_of(choice->ld[CORE_C], width),
        address_of(workspace.partials),
        address_of(workspace.counters),
    };
    void *parameters[ARGUMENTS];
    for (int i = 0; i < ARGUMENTS; ++i)
        parameters[i] = &arguments[i];
    const cu_result result = handle->driver.launch(function, choice->grid[0], choice->grid[1], 1,
                                                   (unsigned)kernel->threads, 1, 1, (unsigned)kernel->smem_bytes,
                                                   handle->stream, parameters, NULL);
    return answered(handle, "cuLaunchKernel", result);
}

/* Whether the factor equals this real number. */
static int is_number(const struct call *call, const void *factor, double number)
{
    if (call->type == TSM2_F64 || call->type == TSM2_C128) {
        double parts[2] = {0, 0};
        memcpy(parts, factor, (size_t)core_sum_bytes((int)call->type));
        return parts[0] == number && parts[1] == 0;
    }
    float parts[2] = {0, 0};
    memcpy(parts, factor, (size_t)core_sum_bytes((int)call->type));
    return (double)parts[0] == number && parts[1] == 0;
}

/* C = beta C, for k = 0 or alpha = 0. A and B are not read. */
static tsm2_status scale(tsm2_handle handle, const struct call *call)
{
    if (is_number(call, call->beta, 1))
        return TSM2_SUCCESS;
    if (!is_number(call, call->beta, 0))
        return fail(handle, TSM2_NOT_SUPPORTED, "no kernel scales C: with k = 0 or alpha = 0 beta must be 0 or 1");
    const size_t bytes = (size_t)core_element_bytes((int)call->type);
    const size_t pitch = (size_t)call->ldc * bytes, width = (size_t)call->m * bytes, height = (size_t)call->n;
    return answered(handle, "cuMemsetD2D8Async",
                    handle->driver.set_lines((uintptr_t)call->C, pitch, 0, width, height, handle->stream));
}

/* Choose a kernel for the call. Its product has elements. */
static tsm2_status find(tsm2_handle handle, const struct call *call, struct core_choice *choice)
{
    const struct core_product product = product_of(call);
    *choice = chosen(handle, &product);
    if (choice->reason == CORE_NO_KERNEL) {
        describe_lack(handle->pack, call, handle->error, sizeof handle->error);
        return TSM2_NOT_SUPPORTED;
    }
    return TSM2_SUCCESS;
}

static tsm2_status multiply(tsm2_handle handle, struct call call)
{
    struct core_choice choice;
    if (handle == NULL)
        return TSM2_INVALID_VALUE;
    handle->error[0] = '\0';
    TRY(check_shapes(handle, &call));
    if (call.m == 0 || call.n == 0)
        return TSM2_SUCCESS;
    TRY(check_addresses(handle, &call));
    const int reads = call.k > 0 && !is_number(&call, call.alpha, 0);
    if (reads)
        TRY(find(handle, &call, &choice));
    int has_entered;
    TRY(enter(handle, &has_entered));
    const tsm2_status status = reads ? start(handle, &call, &choice) : scale(handle, &call);
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
static tsm2_status ask(tsm2_handle handle, const struct call *call, struct core_choice *choice)
{
    handle->error[0] = '\0';
    if ((int)call->type < TSM2_F32 || call->type > TSM2_F16)
        return fail(handle, TSM2_INVALID_VALUE, "type: %d is none", (int)call->type);
    TRY(check_shapes(handle, call));
    if (call->m == 0 || call->n == 0 || call->k == 0)
        return fail(handle, TSM2_NOT_SUPPORTED, "an extent is 0: no kernel computes that");
    return find(handle, call, choice);
}

EXPORTED tsm2_status tsm2_choice(tsm2_handle handle, tsm2_type type, tsm2_operation transa, tsm2_operation transb,
                                 int64_t m, int64_t n, int64_t k, const void *A, int64_t lda, const void *B,
                                 int64_t ldb, int64_t ldc, char *text, size_t bytes)
{
    const struct call call = {type, transa, transb, m, n, k, NULL, A, lda, B, ldb, NULL, NULL, ldc};
    struct core_choice choice;
    if (handle == NULL || text == NULL || bytes == 0)
        return TSM2_INVALID_VALUE;
    text[0] = '\0';
    TRY(ask(handle, &call, &choice));
    core_explain(handle->pack, &choice, handle->device, text, bytes);
    return TSM2_SUCCESS;
}

EXPORTED tsm2_status tsm2_compare(tsm2_handle handle, tsm2_type type, tsm2_operation transa, tsm2_operation transb,
                                  int64_t m, int64_t n, int64_t k, const void *A, int64_t lda, const void *B,
                                  int64_t ldb, int64_t ldc, double *us, double *cublas_us, int *is_slower)
{
    const struct call call = {type, transa, transb, m, n, k, NULL, A, lda, B, ldb, NULL, NULL, ldc};
    struct core_choice choice;
    if (handle == NULL || us == NULL || cublas_us == NULL || is_slower == NULL)
        return TSM2_INVALID_VALUE;
    *us = *cublas_us = 0;
    *is_slower = 1;
    TRY(ask(handle, &call, &choice));
    TRY(check_launch(handle, &choice));
    TRY(find_kernel(handle, choice.kernel, choice.index_bits == 64));
    *us = choice.us;
    *cublas_us = choice.vendor_us;
    *is_slower = choice.is_vendors;
    return TSM2_SUCCESS;
}

EXPORTED tsm2_status tsm2_workspace_size(tsm2_handle handle, tsm2_type type, tsm2_operation transa,
                                         tsm2_operation transb, int64_t m, int64_t n, int64_t k, const void *A,
                                         int64_t lda, const void *B, int64_t ldb, int64_t ldc, size_t *bytes)
{
    const struct call call = {type, transa, transb, m, n, k, NULL, A, lda, B, ldb, NULL, NULL, ldc};
    struct core_choice choice;
    if (handle == NULL || bytes == NULL)
        return TSM2_INVALID_VALUE;
    *bytes = 0;
    TRY(ask(handle, &call, &choice));
    TRY(check_launch(handle, &choice));
    *bytes = whole_workspace_bytes(choice.partials_bytes, choice.counters_bytes);
    return TSM2_SUCCESS;
}
