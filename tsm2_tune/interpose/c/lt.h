/* cuBLASLt's routine for products (lt.c), the library that a call of it is for (call_sites.c), and what is known of the
   descriptors that it comes with (lt_descriptor_cache.c). */

#ifndef LT_H
#define LT_H

#include "standin.h"

int cublasLtMatmul(void *handle, const void *operation, const void *alpha, const void *A, const void *layout_a,
                   const void *B, const void *layout_b, const void *beta, const void *C, const void *layout_c, void *D,
                   const void *layout_d, const void *algorithm, void *workspace, size_t workspace_bytes, cu_stream stream);

enum { MOST_WORDS = 64 }; /* of a descriptor */
/* Which bits of a descriptor mean something: the others are what its memory held before. */
struct meaning {
    uint64_t mask[MOST_WORDS];
    int words; /* those behind them mean nothing */
};

/* Functions for descriptors, of operations (cublasLtMatmulDesc_t) and of layouts (cublasLtMatrixLayout_t). */
#define DESCRIPTORS(X)                                                                                               \
    X(make_operation, "cublasLtMatmulDescInit_internal", (void *made, size_t bytes, int compute, int scale))         \
    X(get_of_operation, "cublasLtMatmulDescGetAttribute",                                                            \
      (const void *operation, int attribute, void *value, size_t bytes, size_t *written))                            \
    X(set_of_operation, "cublasLtMatmulDescSetAttribute",                                                            \
      (void *operation, int attribute, const void *value, size_t bytes))                                             \
    X(make_layout, "cublasLtMatrixLayoutInit_internal",                                                              \
      (void *made, size_t bytes, int type, uint64_t rows, uint64_t columns, int64_t ld))                             \
    X(get_of_layout, "cublasLtMatrixLayoutGetAttribute",                                                             \
      (const void *layout, int attribute, void *value, size_t bytes, size_t *written))                               \
    X(set_of_layout, "cublasLtMatrixLayoutSetAttribute",                                                             \
      (void *layout, int attribute, const void *value, size_t bytes))

/* A place in code that calls cuBLASLt, and the library that its calls are for. */
struct caller {
    const void *address;
    int (*matmul)(void *handle, const void *operation, const void *alpha, const void *A, const void *layout_a,
                  const void *B, const void *layout_b, const void *beta, const void *C, const void *layout_c, void *D,
                  const void *layout_d, const void *algorithm, void *workspace, size_t workspace_bytes, cu_stream stream);
    bool is_cublas; /* in a routine of cuBLAS's */
    bool is_whole;  /* whether it has all of these: */
#define MEMBER(name, symbol, parameters) int(*name) parameters;
    DESCRIPTORS(MEMBER)
#undef MEMBER
    struct meaning of_operation, of_layout;
    uint64_t size_mask, size;     /* bits of an operation's first word that tell how much memory it has, and of a whole one */
    struct known *_Atomic *known; /* KNOWN of them, by their hash; NULL: none is kept */
    _Atomic int unfit;            /* of these, that no kernel can be asked for */
    _Atomic uint64_t closings;    /* after which this was found */
};
/* What is known of calls from this address; NULL where no cuBLASLt is found for them. */
struct caller *caller_at(const void *address);

/* Of a call: A's, B's, C's and D's layouts. */
struct descriptors {
    const void *operation, *layouts[4];
};

/* What they say, whatever the matrices' addresses are. */
struct described {
    struct asked asked; /* without addresses; nothing is known but its type where that is -1 */
    bool is_swapped;    /* its A is the call's B */
    bool has_other_c;   /* C's leading dimension is not D's */
};
/* Asks cuBLASLt what they say. */
struct described described(const struct caller *of, const struct descriptors *descriptors);
/* The same; of descriptors that are, bit by bit, like ones that came before, what those said. */
struct described known_or_described(struct caller *of, const struct descriptors *descriptors);
/* Whether the descriptor is like another, in the bits that mean something. */
bool is_like(const void *descriptor, const uint64_t *made, const struct meaning *meaning);

enum { KNOWN = 1024 }; /* a power of two; products of a caller */

#endif
