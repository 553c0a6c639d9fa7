/* A call as matrices in memory, and the kernel chosen for it. */

#ifndef TSM2_PRODUCT_H
#define TSM2_PRODUCT_H

#include <stdint.h>

#include "pack.h"
#include "tsm2.h"

/* The arguments of a call. */
struct call {
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
};

/* A matrix in memory. */
struct matrix {
    const void *address;
    int64_t rows, columns;
    int64_t ld[ORDERS]; /* leading dimension in each storage order that it has; else 0 */
};

/* C (m x n) = A (m x k) B (k x n), with the matrices as they are stored. */
struct product {
    int type; /* a tsm2_type */
    int64_t m, n, k;
    struct matrix matrices[3]; /* A, B and C */
    int conjugates[2];
    int is_gram; /* whether B is A transposed, in the same memory */
};

/* The winner chosen for a product, and why. */
struct match {
    const struct winner *winner;
    struct launch launch;
    double distance; /* norm of the log-ratios of m, n and k; 0: tuned for this shape */
    int of_other_device, swapped;
    int64_t m, n, k; /* of the transposed product, if that is computed */
    double expected_us, vendor_us; /* measured for an exact match, else predicted; 0: unknown */
};

int64_t element_bytes(tsm2_type type);
int64_t sum_bytes(tsm2_type type); /* of sums, alpha and beta */

struct product product_of(const struct call *call);

/* C^T = B^T A^T in the same memory. */
struct product transposed_product(const struct product *product);

/* The width of the index that the product needs: 0 is 32 bits, 1 is 64. `oriented` is as the winner computes it. */
int index_width(const struct product *oriented, const struct winner *winner);

/* The bytes of its workspace: partial sums and counters. */
uint64_t partials_bytes(const struct launch *launch, const struct product *oriented);
uint64_t counters_bytes(const struct launch *launch, const struct product *oriented);

/* Whether the winner takes this A and B, whatever C is. */
int fits_operands(const struct winner *winner, const struct product *product);

/* The match for the product on this GPU; `winner` is NULL if none has these operations. */
struct match choose(const struct product *product, const char *device);

/* Whether the vendor is faster, or predicted to be nearly as fast. */
int loses(const struct match *match);

/* Describe a match in words. */
void describe_match(const struct match *match, const char *device, char *text, size_t bytes);

/* Say that no winner takes the product, and which products have winners. */
void describe_lack(const struct call *call, char *text, size_t bytes);

#endif
