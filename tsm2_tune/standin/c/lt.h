/* cuBLASLt's routine for products (lt.c), and the library that a call of it is for (callers.c). */

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
};
/* What is known of calls from this address; NULL where no cuBLASLt is found for them. */
const struct caller *caller_at(const void *address);

#endif
