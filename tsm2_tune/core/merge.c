/* Equivalent products: the transposed product, and a batch as one product. Whether B is the transpose of A. */

#include "core.h"

#define LARGEST_MERGED_ROWS 0x1p62

struct core_product core_transposed_product(const struct core_product *product)
{
    static const int from[CORE_MATRICES] = {CORE_B, CORE_A, CORE_C};
    struct core_product transposed = *product;
    transposed.m = product->n, transposed.n = product->m;
    transposed.conjugates[0] = product->conjugates[1], transposed.conjugates[1] = product->conjugates[0];
    transposed.is_gram = 0;
    for (int x = 0; x < CORE_MATRICES; ++x) {
        transposed.ld[x][CORE_COLUMN_MAJOR] = product->ld[from[x]][CORE_ROW_MAJOR];
        transposed.ld[x][CORE_ROW_MAJOR] = product->ld[from[x]][CORE_COLUMN_MAJOR];
        transposed.strides[x] = product->strides[from[x]];
    }
    return transposed;
}

int core_is_gram(const struct core_product *product)
{
    const int64_t *a = product->ld[CORE_A], *b = product->ld[CORE_B];
    return product->m == product->n && product->strides[CORE_A] == product->strides[CORE_B] &&
           a[CORE_COLUMN_MAJOR] == b[CORE_ROW_MAJOR] && a[CORE_ROW_MAJOR] == b[CORE_COLUMN_MAJOR];
}

/* Return the leading dimension, in this storage order, of one matrix that stacks matrix x of all products: the rows of
   the first product, then of the second, and so on. Return 0 if memory does not hold them so. */
static int64_t merged_ld(const struct core_product *product, int x, int order)
{
    const int64_t ld = product->ld[x][order], stride = product->strides[x], m = product->m;
    const int64_t columns = x == CORE_A ? product->k : product->n;
    if (ld == 0 || stride < 1)
        return 0;
    if (order == CORE_ROW_MAJOR)
        return m == 1 ? (stride >= columns ? stride : 0) : (stride % m == 0 && stride / m == ld ? ld : 0);
    if (stride != m)
        return 0;
    return columns == 1 ? m * product->batch_count : (ld / product->batch_count >= m ? ld : 0);
}

/* Return the batch as one product with the rows of all A and of all C, if all have one B; else the batch itself. */
static struct core_product with_merged_rows(const struct core_product *product)
{
    static const int in_rows[] = {CORE_A, CORE_C};
    struct core_product one = *product;
    if (product->strides[CORE_B] != 0 || product->is_gram ||
        (double)product->m * (double)product->batch_count > LARGEST_MERGED_ROWS)
        return one;
    for (int i = 0; i < (product->makes_c ? 1 : 2); ++i) {
        int64_t *ld = one.ld[in_rows[i]];
        for (int order = 0; order < CORE_ORDERS; ++order)
            ld[order] = merged_ld(product, in_rows[i], order);
        if (ld[CORE_COLUMN_MAJOR] == 0 && ld[CORE_ROW_MAJOR] == 0)
            return *product;
    }
    one.m *= product->batch_count;
    one.batch_count = 1;
    return one;
}

struct core_product core_merged_product(const struct core_product *product, enum core_merged merged)
{
    if (merged == CORE_ROWS && product->batch_count > 1)
        return with_merged_rows(product);
    if (merged == CORE_COLUMNS && product->batch_count > 1) {
        const struct core_product transposed = core_transposed_product(product);
        const struct core_product one = with_merged_rows(&transposed);
        return product->is_gram || one.batch_count > 1 ? *product : core_transposed_product(&one);
    }
    return *product;
}
