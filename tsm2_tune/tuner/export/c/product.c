#include "product.h"

#include "launch.h"

int64_t element_bytes(tsm2_type type)
{
    static const int64_t bytes[] = {4, 8, 8, 16, 2, 2};
    return bytes[type];
}

int64_t sum_bytes(tsm2_type type) { return type == TSM2_BF16 || type == TSM2_F16 ? 4 : element_bytes(type); }

static struct matrix transposed(struct matrix x)
{
    const struct matrix across = {x.address, x.columns, x.rows, {x.ld[ROW_MAJOR], x.ld[COLUMN_MAJOR]}};
    return across;
}

/* The matrix of a column-major argument. One with an extent of 1 may be row-major too: the step along that extent
   says nothing. */
static struct matrix stored(const void *address, int64_t rows, int64_t columns, int64_t ld)
{
    struct matrix x = {address, rows, columns, {columns == 1 ? rows : ld, 0}};
    if (columns == 1)
        x.ld[ROW_MAJOR] = 1;
    else if (rows == 1 && ld == 1)
        x.ld[ROW_MAJOR] = columns;
    return x;
}

static struct matrix operand(const void *address, int64_t rows, int64_t columns, int64_t ld, tsm2_operation operation)
{
    if (operation == TSM2_N)
        return stored(address, rows, columns, ld);
    return transposed(stored(address, columns, rows, ld));
}

static int same_matrix(const struct matrix *x, const struct matrix *y)
{
    return x->address == y->address && x->rows == y->rows && x->columns == y->columns &&
           x->ld[COLUMN_MAJOR] == y->ld[COLUMN_MAJOR] && x->ld[ROW_MAJOR] == y->ld[ROW_MAJOR];
}

struct product product_of(const struct call *call)
{
    const int is_complex = call->type == TSM2_C64 || call->type == TSM2_C128;
    struct product product = {
        .type = (int)call->type,
        .m = call->m,
        .n = call->n,
        .k = call->k,
        .matrices = {operand(call->A, call->m, call->k, call->lda, call->transa),
                     operand(call->B, call->k, call->n, call->ldb, call->transb),
                     stored(call->C, call->m, call->n, call->ldc)},
        .conjugates = {is_complex && call->transa == TSM2_C, is_complex && call->transb == TSM2_C},
    };
    const struct matrix across = transposed(product.matrices[0]);
    product.is_gram = same_matrix(&across, &product.matrices[1]);
    return product;
}

struct product transposed_product(const struct product *product)
{
    const struct product across = {
        .type = product->type,
        .m = product->n,
        .n = product->m,
        .k = product->k,
        .matrices = {transposed(product->matrices[1]), transposed(product->matrices[0]),
                     transposed(product->matrices[2])},
        .conjugates = {product->conjugates[1], product->conjugates[0]},
        .is_gram = 0,
    };
    return across;
}

int index_width(const struct product *oriented, const struct winner *winner)
{
    int64_t most = oriented->m > oriented->k ? oriented->m : oriented->k;
    int is_wide = most > LARGEST_32_BIT_OFFSET / 2;
    for (int x = 0; x < 3; ++x) {
        const struct matrix *matrix = &oriented->matrices[x];
        const int order = winner->orders[x];
        is_wide |= matrix->ld[order] * (order == COLUMN_MAJOR ? matrix->columns : matrix->rows) > LARGEST_32_BIT_OFFSET;
    }
    return is_wide;
}

uint64_t partials_bytes(const struct launch *launch, const struct product *oriented)
{
    const uint64_t elements = launch_partial_elements(launch, (uint64_t)oriented->m, (uint64_t)oriented->n);
    return elements * (uint64_t)sum_bytes((tsm2_type)oriented->type);
}

uint64_t counters_bytes(const struct launch *launch, const struct product *oriented)
{
    return launch_counters(launch, (uint64_t)oriented->m, (uint64_t)oriented->n) * 4;
}
