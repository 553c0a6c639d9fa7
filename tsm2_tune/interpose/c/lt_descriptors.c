/* Decode cuBLASLt's descriptors of a product.

   A new descriptor is created with the attributes that are read here, and defaults for all others. A kernel is used
   only if it equals the program's descriptor bit by bit. An unknown attribute, such as one of a later version, changes
   the descriptor, so it is never ignored. */

#include "lt.h"

/* Values of cuBLASLt's constants */
enum { COMPUTE_TYPE = 0, SCALE_TYPE = 1, POINTER_MODE = 2, TRANS_A = 3, TRANS_B = 4, EPILOGUE_KIND = 7, SM_COUNT = 15 };
enum { LAYOUT_TYPE = 0, ORDER = 1, ROWS = 2, COLUMNS = 3, LD = 4, BATCH_COUNT = 5, BATCH_STRIDE = 6 };
enum { COLUMN_MAJOR = 0, ROW_MAJOR = 1, NO_EPILOGUE = 1, CONJUGATED = 3 };

bool is_like(const void *descriptor, const uint64_t *made, const struct meaning *meaning)
{
    const uint64_t *words = descriptor;
    for (int at = 0; at < meaning->words; ++at) /* a smaller descriptor, of an older header, differs in its first words */
        if (((words[at] ^ made[at]) & meaning->mask[at]) != 0)
            return false;
    return true;
}

struct matrix {
    int32_t type, order, batches;
    uint64_t rows, columns;
    int64_t ld, stride; /* stride: from a product's matrix to the next's, in elements */
    bool is_known; /* all attributes that are not in this struct have their defaults */
};

/* Read or write an attribute of a layout; true if cuBLASLt succeeds. */
#define GET(attribute, value) (of->get_of_layout(layout, attribute, &(value), sizeof(value), &written) == CUBLAS_SUCCESS)
#define SET(attribute, value) (of->set_of_layout(made, attribute, &(value), sizeof(value)) == CUBLAS_SUCCESS)

static bool matrix_of(const struct caller *of, const void *layout, struct matrix *found)
{
    uint64_t made[MOST_WORDS];
    size_t written;
    if (!GET(LAYOUT_TYPE, found->type) || !GET(ROWS, found->rows) || !GET(COLUMNS, found->columns) || !GET(LD, found->ld) ||
        of->make_layout(made, sizeof made, found->type, found->rows, found->columns, found->ld) != CUBLAS_SUCCESS)
        return false;
    found->order = COLUMN_MAJOR, found->batches = 1, found->stride = 0;
    found->is_known = is_like(layout, made, &of->of_layout);
    if (found->is_known)
        return true;
    if (!GET(ORDER, found->order) || !GET(BATCH_COUNT, found->batches) || !GET(BATCH_STRIDE, found->stride))
        return false;
    found->is_known = (found->order == COLUMN_MAJOR || SET(ORDER, found->order)) &&
                      (found->batches == 1 || SET(BATCH_COUNT, found->batches)) && SET(BATCH_STRIDE, found->stride) &&
                      is_like(layout, made, &of->of_layout);
    return true;
}
#undef GET
#undef SET

struct operation {
    int32_t compute, scale, transa, transb;
    enum reason unfit;
};

#define GET(attribute, value)                                                                                        \
    (of->get_of_operation(operation, attribute, &(value), sizeof(value), &written) == CUBLAS_SUCCESS)
#define SET(attribute, value) (of->set_of_operation(made, attribute, &(value), sizeof(value)) == CUBLAS_SUCCESS)

/* Return the reason why no kernel can compute the operation: an attribute that differs from its default. */
static enum reason reason_of(const struct caller *of, const void *operation)
{
    int32_t epilogue, mode, multiprocessors;
    size_t written;
    if (GET(EPILOGUE_KIND, epilogue) && epilogue != NO_EPILOGUE)
        return EPILOGUE;
    if (GET(POINTER_MODE, mode) && mode != HOST_POINTERS)
        return DEVICE_FACTORS;
    return GET(SM_COUNT, multiprocessors) && multiprocessors != 0 ? FEWER_SMS : MORE;
}

static bool operation_of(const struct caller *of, const void *operation, struct operation *found)
{
    uint64_t made[MOST_WORDS];
    size_t written;
    if (!GET(COMPUTE_TYPE, found->compute) || !GET(SCALE_TYPE, found->scale) || !GET(TRANS_A, found->transa) ||
        !GET(TRANS_B, found->transb) ||
        of->make_operation(made, sizeof made, found->compute, found->scale) != CUBLAS_SUCCESS)
        return false;
    const bool is_like_it = SET(TRANS_A, found->transa) && SET(TRANS_B, found->transb) &&
                            is_like(operation, made, &of->of_operation);
    found->unfit = is_like_it ? NOT_LEFT : reason_of(of, operation);
    return true;
}
#undef GET
#undef SET

/* Return the tsm2_type of a product of these matrices with this scale type; -1 if no kernel supports it. */
static int type_of_matrices(const struct matrix *a, const struct matrix *b, const struct matrix *c, const struct matrix *d,
                            const struct operation *operation)
{
    static const int scales[] = {R_32F, R_64F, C_32F, C_64F, R_32F, R_32F}; /* by tsm2_type */
    const int type = c->type == d->type ? type_of(a->type, b->type, d->type, operation->compute) : -1;
    return type >= 0 && operation->scale == scales[type] ? type : -1;
}

/* Return the operation on X^T that equals this operation on X. */
static int transposed(int operation)
{
    static const int other[] = {TSM2_T, TSM2_N, CONJUGATED, TSM2_C};
    return other[operation];
}

/* Return the product as one of column-major matrices in the same memory. If C is row-major, it is the transposed
   product. If an operation would have to conjugate without transposing, return the product with `unfit` set. */
static struct described by_columns(struct described described, const struct matrix *a, const struct matrix *b,
                                   const struct matrix *d)
{
    const struct asked asked = described.asked;
    struct described found = described;
    const int transa = a->order == ROW_MAJOR ? transposed(asked.transa) : asked.transa;
    const int transb = b->order == ROW_MAJOR ? transposed(asked.transb) : asked.transb;
    found.asked.transa = transa, found.asked.transb = transb;
    if (d->order == ROW_MAJOR) {
        found.asked.transa = transposed(transb), found.asked.transb = transposed(transa);
        found.asked.m = asked.n, found.asked.n = asked.m;
        found.asked.lda = asked.ldb, found.asked.ldb = asked.lda;
        found.asked.stride_a = asked.stride_b, found.asked.stride_b = asked.stride_a;
        found.is_swapped = true;
    }
    if (found.asked.transa != CONJUGATED && found.asked.transb != CONJUGATED)
        return found;
    described.asked.unfit = MORE;
    return described;
}

static bool has_order(const struct matrix *matrix) { return matrix->order == COLUMN_MAJOR || matrix->order == ROW_MAJOR; }

/* Return the reason why no kernel can multiply these matrices; NOT_LEFT if one may. */
static enum reason reason_of_matrices(const struct asked *asked, const struct matrix *a, const struct matrix *b,
                                      const struct matrix *c, const struct matrix *d)
{
    const bool a_is_plain = asked->transa == TSM2_N, b_is_plain = asked->transb == TSM2_N;
    const uint64_t depth = (uint64_t)asked->k;
    if (a->batches != d->batches || b->batches != d->batches || c->batches != d->batches)
        return ZERO;
    if (!a->is_known || !b->is_known || !c->is_known || !d->is_known || !has_order(a) || !has_order(b) || !has_order(d))
        return MORE;
    if ((a_is_plain ? a->rows : a->columns) != d->rows || (b_is_plain ? b->rows : b->columns) != depth ||
        (b_is_plain ? b->columns : b->rows) != d->columns)
        return ZERO;
    return c->rows != d->rows || c->columns != d->columns || c->order != d->order ? MORE : NOT_LEFT;
}

struct described described(const struct caller *of, const struct descriptors *descriptors)
{
    struct matrix a, b, c, d;
    struct operation done;
    struct described found = {.asked = {.routine = LT_MATMUL, .type = -1, .batches = 1, .unfit = NOT_LEFT}};
    struct asked *asked = &found.asked;
    const void *const *layouts = descriptors->layouts;
    if (!of->is_whole || !operation_of(of, descriptors->operation, &done) || !matrix_of(of, layouts[3], &d) ||
        type_of(d.type, d.type, d.type, done.compute) < 0) /* returns early for most types without kernels */
        return found;
    if (!matrix_of(of, layouts[0], &a) || !matrix_of(of, layouts[1], &b))
        return found;
    if (layouts[2] == layouts[3])
        c = d;
    else if (!matrix_of(of, layouts[2], &c))
        return found;
    asked->type = type_of_matrices(&a, &b, &c, &d, &done);
    if (asked->type < 0)
        return found;
    asked->transa = done.transa, asked->transb = done.transb;
    asked->m = (int64_t)d.rows, asked->n = (int64_t)d.columns;
    asked->k = (int64_t)(done.transa == TSM2_N ? a.columns : a.rows);
    asked->lda = a.ld, asked->ldb = b.ld, asked->ldc = d.ld;
    asked->batches = d.batches;
    if (d.batches != 1)
        asked->stride_a = a.stride, asked->stride_b = b.stride, asked->stride_c = d.stride;
    asked->unfit = done.unfit != NOT_LEFT ? done.unfit : reason_of_matrices(asked, &a, &b, &c, &d);
    found.has_other_c = c.ld != d.ld || (d.batches != 1 && c.stride != d.stride);
    const bool is_known = done.transa >= TSM2_N && done.transa <= TSM2_C && done.transb >= TSM2_N && done.transb <= TSM2_C;
    return asked->unfit == NOT_LEFT && is_known ? by_columns(found, &a, &b, &d) : found;
}
