/* Products: their choice, their launch. */

#include <string.h>

#include "handle.h"

enum { OWN_ARGUMENTS = 11, MOST_ARGUMENTS = 19 }; /* of any product; with a workspace and of a batch */

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

/* Add a batch's part of the key: its choice may depend on how its matrices lie, since they may make up one product. */
static void add_batch(int64_t key[KEY_WORDS], const struct core_product *product)
{
    int64_t *word = &key[SINGLE_KEY_WORDS];
    *word++ = product->batch_count;
    for (int x = 0; x < CORE_MATRICES; ++x) {
        const int64_t *ld = product->ld[x];
        *word++ = product->strides[x];
        *word++ = ld[CORE_COLUMN_MAJOR] != 0 ? ld[CORE_COLUMN_MAJOR] : ld[CORE_ROW_MAJOR];
    }
}

/* The choice for the product, from the cache of choices or made now. Single products with other leading dimensions may
   share an entry, so these are set anew. */
static struct core_choice chosen(tsm2_handle handle, const struct core_product *product)
{
    struct cached_choice now = {{product->m, product->n, product->k, product->type}, {0}};
    int64_t facts = product->is_gram;
    uint64_t place = 0;
    const int is_batch = product->batch_count > 1;
    for (int x = 0; x < CORE_MATRICES; ++x)
        for (int order = 0; order < CORE_ORDERS; ++order)
            facts = facts * KINDS_OF_LINES + kind_of_lines(product, x, order);
    now.key[3] += (facts * 4 + product->conjugates[0] * 2 + product->conjugates[1]) * 16;
    if (is_batch)
        add_batch(now.key, product);
    for (int i = 0; i < (is_batch ? KEY_WORDS : SINGLE_KEY_WORDS); ++i)
        place = (place ^ (uint64_t)now.key[i]) * 0x9e3779b97f4a7c15u;
    struct cached_choice *first = &handle->choices[(place >> 32) % (CHOICES / WAYS) * WAYS], *free = NULL;
    for (int way = 0; way < WAYS; ++way) {
        if (first[way].choice.reason == CORE_NO_KERNEL)
            free = free == NULL ? &first[way] : free;
        else if (memcmp(first[way].key, now.key, sizeof now.key) == 0) {
            struct core_choice found = first[way].choice;
            if (!is_batch)
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

tsm2_status check_launch(tsm2_handle handle, const struct core_choice *choice)
{
    if (!choice->is_too_large)
        return TSM2_SUCCESS;
    return fail(handle, TSM2_NOT_SUPPORTED, "%s needs more blocks than a grid has, or more workspace than a memory",
                core_text(handle->pack, handle->pack->kernels[choice->kernel].configuration));
}

/* Add the arguments behind the product's own: the workspace, and what a kernel of batches has. Return their number. */
static int add_arguments(union argument *arguments, int count, const struct core_kernel *kernel,
                         const struct core_choice *choice, const struct workspace *workspace)
{
    const int is_batched = kernel->batched != CORE_SINGLE;
    if (kernel->has_workspace || !is_batched) {
        arguments[count++] = address_of(workspace->partials);
        arguments[count++] = address_of(workspace->counters);
    }
    if (!is_batched)
        return count;
    arguments[count++] = index_of(choice->batch_count, 0);
    for (int x = 0; x < CORE_MATRICES; ++x)
        arguments[count++] = index_of(choice->strides[x], 1);
    if (kernel->has_workspace) {
        arguments[count++] = index_of((int64_t)choice->partials_stride, 1);
        arguments[count++] = index_of((int64_t)choice->counters_stride, 1);
    }
    return count;
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
    union argument arguments[MOST_ARGUMENTS] = {
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
    };
    const int count = add_arguments(arguments, OWN_ARGUMENTS, kernel, choice, &workspace);
    void *parameters[MOST_ARGUMENTS];
    for (int i = 0; i < count; ++i)
        parameters[i] = &arguments[i];
    const cu_result result = handle->driver.launch(function, choice->grid[0], choice->grid[1], choice->grid[2],
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

/* Zero each matrix of C, or by one call for each column the columns of all, whichever are fewer calls. */
static tsm2_status zero(tsm2_handle handle, const struct call *call)
{
    const int are_columns = call->n < call->batch_count;
    const size_t bytes = (size_t)core_element_bytes((int)call->type), width = (size_t)call->m * bytes;
    const size_t pitch = (size_t)(are_columns ? call->stride_c : call->ldc) * bytes;
    const size_t step = (size_t)(are_columns ? call->ldc : call->stride_c) * bytes;
    const size_t height = (size_t)(are_columns ? call->batch_count : call->n);
    const int64_t calls = are_columns ? call->n : call->batch_count;
    for (int64_t i = 0; i < calls; ++i)
        TRY(answered(handle, "cuMemsetD2D8Async",
                     handle->driver.set_lines((uintptr_t)call->C + (size_t)i * step, pitch, 0, width, height,
                                              handle->stream)));
    return TSM2_SUCCESS;
}

/* C = beta C, for k = 0 or alpha = 0. A and B are not read. */
static tsm2_status scale(tsm2_handle handle, const struct call *call)
{
    if (is_number(call, call->beta, 1))
        return TSM2_SUCCESS;
    if (!is_number(call, call->beta, 0))
        return fail(handle, TSM2_NOT_SUPPORTED, "no kernel scales C: with k = 0 or alpha = 0 beta must be 0 or 1");
    return zero(handle, call);
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

tsm2_status begin(tsm2_handle handle, const struct call *call, int *has_elements)
{
    if (handle == NULL)
        return TSM2_INVALID_VALUE;
    handle->error[0] = '\0';
    *has_elements = call->m != 0 && call->n != 0 && call->batch_count != 0;
    return check_shapes(handle, call);
}

tsm2_status multiply(tsm2_handle handle, const struct call *call)
{
    struct core_choice choice;
    int has_elements;
    TRY(begin(handle, call, &has_elements));
    if (!has_elements)
        return TSM2_SUCCESS;
    TRY(check_strides(handle, call));
    TRY(check_addresses(handle, call));
    const int reads = call->k > 0 && !is_number(call, call->alpha, 0);
    if (reads)
        TRY(find(handle, call, &choice));
    int has_entered;
    TRY(enter(handle, &has_entered));
    const tsm2_status status = reads ? start(handle, call, &choice) : scale(handle, call);
    return leave(handle, has_entered, status);
}

tsm2_status ask(tsm2_handle handle, const struct call *call, struct core_choice *choice)
{
    handle->error[0] = '\0';
    if ((int)call->type < TSM2_F32 || call->type > TSM2_F16)
        return fail(handle, TSM2_INVALID_VALUE, "type: %d is none", (int)call->type);
    TRY(check_shapes(handle, call));
    if (call->m == 0 || call->n == 0 || call->k == 0 || call->batch_count == 0)
        return fail(handle, TSM2_NOT_SUPPORTED, "an extent is 0: no kernel computes that");
    TRY(check_strides(handle, call));
    return find(handle, call, choice);
}
