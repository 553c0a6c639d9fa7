/* A call as matrices in memory, and the kernel that it gets. */

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
    int64_t ld[ORDERS]; /* each storage order that it has -> elements from the start of a line to the next; else 0 */
};

/* C (m x n) = A (m x k) B (k x n), each as it lies in memory. */
struct product {
    int type; /* a tsm2_type */
    int64_t m, n, k;
    struct matrix matrices[3]; /* A, B and C */
    int conjugates[2];
    int is_gram; /* whether B is A transposed, in the same memory */
};

/* Which winner a product gets, and how it was found. */
struct match {
    const struct winner *winner;
    struct launch launch;
    double distance; /* of the logarithms of m, n and k; 0 is exact */
    int of_other_device, swapped;
    int64_t m, n, k; /* of the transposed product, where that is computed */
    double expected_us, vendor_us; /* measured, where it is exact, else predicted; 0: not known */
};

int64_t element_bytes(tsm2_type type);
int64_t sum_bytes(tsm2_type type); /* of alpha and beta too */

struct product product_of(const struct call *call);

/* B transposed times A transposed, into C transposed: the same numbers in the same memory. */
struct product transposed_product(const struct product *product);

/* The width of the index that reaches every element of the product that the winner computes: 0 is 32 bits, 1 is 64. */
int index_width(const struct product *oriented, const struct winner *winner);

/* The bytes of its workspace: of the sums, and of the counters. */
uint64_t partials_bytes(const struct launch *launch, const struct product *oriented);
uint64_t counters_bytes(const struct launch *launch, const struct product *oriented);

/* Whether the winner is for such an A and B, whatever C. */
int fits_operands(const struct winner *winner, const struct product *product);

/* The winner for the product on this GPU; its `winner` is NULL where none is for these operations. */
struct match choose(const struct product *product, const char *device);

/* Whether the vendor is expected to be faster, or nearly as fast where the times are predicted. */
int loses(const struct match *match);

/* What a match is, in words. */
void describe_match(const struct match *match, const char *device, char *text, size_t bytes);

/* That no winner is for the product, and for which there are some. */
void describe_lack(const struct call *call, char *text, size_t bytes);

#endif
