/* The arguments of a call, and its product as the core sees it. */

#ifndef TSM2_PRODUCT_H
#define TSM2_PRODUCT_H

#include <stdint.h>

#include "core.h"
#include "tsm2.h"

/* How a routine is given its matrices: one of each, or batches of them with strides or with arrays of pointers. */
enum form { SINGLE, STRIDED, POINTERS };

/* The arguments of a call. */
struct call {
    enum form form;
    tsm2_type type;
    tsm2_operation transa, transb;
    int64_t m, n, k;
    const void *alpha, *A;
    int64_t lda;
    const void *B;
    int64_t ldb;
    const void *beta;
    void *C;
    int64_t ldc;
    int64_t stride_a, stride_b, stride_c; /* they count if batch_count exceeds 1 */
    int64_t batch_count;
};

/* Return the product of a call whose extents and count are at least 1. */
struct core_product product_of(const struct call *call);

/* Say that no kernel takes the product, and which ops have kernels. */
void describe_lack(const struct core_pack *pack, const struct call *call, char *text, size_t bytes);

#endif
