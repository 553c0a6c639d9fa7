#include "product.h"

#include <stdio.h>
#include <string.h>

/* Set the leading dimensions of a column-major matrix, which is transposed as an operand if `across`. A matrix with an
   extent of 1 may be row-major too: the step along that extent means nothing. */
static void set_ld(int64_t ld[CORE_ORDERS], int64_t rows, int64_t columns, int64_t given, int across)
{
    ld[across ? CORE_ROW_MAJOR : CORE_COLUMN_MAJOR] = columns == 1 ? rows : given;
    ld[across ? CORE_COLUMN_MAJOR : CORE_ROW_MAJOR] = columns == 1 ? 1 : rows == 1 && given == 1 ? columns : 0;
}

struct core_product product_of(const struct call *call)
{
    const int across_a = call->transa != TSM2_N, across_b = call->transb != TSM2_N;
    const int is_complex = call->type == TSM2_C64 || call->type == TSM2_C128;
    const int64_t m = call->m, n = call->n, k = call->k;
    struct core_product product;
    memset(&product, 0, sizeof product);
    product.m = m, product.n = n, product.k = k;
    product.batch_count = call->batch_count;
    if (call->batch_count > 1) {
        product.strides[CORE_A] = call->stride_a;
        product.strides[CORE_B] = call->stride_b;
        product.strides[CORE_C] = call->stride_c;
    }
    product.type = (int32_t)call->type;
    set_ld(product.ld[CORE_A], across_a ? k : m, across_a ? m : k, call->lda, across_a);
    set_ld(product.ld[CORE_B], across_b ? n : k, across_b ? k : n, call->ldb, across_b);
    set_ld(product.ld[CORE_C], m, n, call->ldc, 0);
    product.conjugates[0] = is_complex && call->transa == TSM2_C;
    product.conjugates[1] = is_complex && call->transb == TSM2_C;
    product.is_gram = call->A == call->B && core_is_gram(&product);
    return product;
}

/* Whether no kernel of single products before this one has its type and op. */
static int is_first_of_op(const struct core_pack *pack, uint32_t at)
{
    for (uint32_t i = 0; i < at; ++i)
        if (pack->kernels[i].type == pack->kernels[at].type && pack->kernels[i].batched == CORE_SINGLE &&
            strcmp(core_text(pack, pack->kernels[i].op), core_text(pack, pack->kernels[at].op)) == 0)
            return 0;
    return 1;
}

/* Append a text as far as there is room. */
static void add(char *text, size_t bytes, const char *more)
{
    const size_t has = strlen(text);
    snprintf(text + has, bytes - has, "%s", more);
}

void describe_lack(const struct core_pack *pack, const struct call *call, char *text, size_t bytes)
{
    static const char *const names[] = {"f32", "f64", "c64", "c128", "bf16", "f16"};
    const int is_complex = call->type == TSM2_C64 || call->type == TSM2_C128;
    const char letters[] = {'n', 't', is_complex ? 'c' : 't'};
    const char op[] = {letters[call->transa], letters[call->transb], '\0'};
    int found = 0;
    if (call->batch_count > 1) {
        snprintf(text, bytes, "no %s kernel for op %s in this library computes %lld*%lldx%lldx%lld: tune that shape and"
                 " export again", names[call->type], op, (long long)call->batch_count, (long long)call->m,
                 (long long)call->n, (long long)call->k);
        return;
    }
    snprintf(text, bytes, "no %s kernel for op %s is in this library, only for ", names[call->type], op);
    for (uint32_t at = 0; at < pack->header->kernel_count; ++at)
        if (pack->kernels[at].type == (int)call->type && pack->kernels[at].batched == CORE_SINGLE &&
            is_first_of_op(pack, at)) {
            add(text, bytes, found++ ? ", " : "");
            add(text, bytes, core_text(pack, pack->kernels[at].op));
        }
    add(text, bytes, found ? "" : "other types");
    const size_t has = strlen(text);
    snprintf(text + has, bytes - has, ": tune with --dtype %s --op %s and export again", names[call->type], op);
}
