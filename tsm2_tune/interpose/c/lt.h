/* The intercepted cublasLtMatmul (lt.c), the search for the library that a call must go to (call_sites.c), and the
   decoding of descriptors (lt_descriptors.c, lt_descriptor_cache.c). */

#ifndef LT_H
#define LT_H

#include "standin.h"

int cublasLtMatmul(void *handle, const void *operation, const void *alpha, const void *A, const void *layout_a,
                   const void *B, const void *layout_b, const void *beta, const void *C, const void *layout_c, void *D,
                   const void *layout_d, const void *algorithm, void *workspace, size_t workspace_bytes, cu_stream stream);

enum { MOST_WORDS = 64 }; /* 64-bit words of the largest descriptor */
/* A mask of the significant bits of a descriptor. The other bits are uninitialised memory. */
struct meaning {
    uint64_t mask[MOST_WORDS];
    int words; /* number of words up to the last significant one */
};

/* cuBLASLt's functions for descriptors of operations (cublasLtMatmulDesc_t) and of layouts (cublasLtMatrixLayout_t). */
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

/* A call site of cublasLtMatmul, and the functions of the library that its calls must go to. */
struct caller {
    const void *address;
    int (*matmul)(void *handle, const void *operation, const void *alpha, const void *A, const void *layout_a,
                  const void *B, const void *layout_b, const void *beta, const void *C, const void *layout_c, void *D,
                  const void *layout_d, const void *algorithm, void *workspace, size_t workspace_bytes, cu_stream stream);
    bool is_cublas; /* the call site is in cuBLAS itself */
    bool is_whole;  /* the library has all of the following functions */
#define MEMBER(name, symbol, parameters) int(*name) parameters;
    DESCRIPTORS(MEMBER)
#undef MEMBER
    struct meaning of_operation, of_layout;
    uint64_t size_mask, size;     /* bits of an operation's first word that encode its size, and their value at full size */
    struct known *_Atomic *known; /* a hash table of KNOWN entries; NULL: no cache */
    _Atomic int unfit;            /* number of cached descriptors for which there is no kernel */
    _Atomic uint64_t closings;    /* value of the global `closings` when the library was found */
};
/* Return the caller for the call site at this address; NULL if no cuBLASLt is found for it. */
struct caller *caller_at(const void *address);

/* A call's descriptors. The layouts are A's, B's, C's and D's. */
struct descriptors {
    const void *operation, *layouts[4];
};

/* The product that a call's descriptors describe, without addresses. */
struct described {
    struct asked asked; /* if its type is -1, nothing else is set */
    bool is_swapped;    /* A of `asked` is the call's B, and vice versa */
    bool has_other_c;   /* C's leading dimension or stride is not D's */
};
/* Decode the descriptors with cuBLASLt's functions. */
struct described described(const struct caller *of, const struct descriptors *descriptors);
/* Decode the descriptors, or return the cached result if equal descriptors were decoded before. */
struct described known_or_described(struct caller *of, const struct descriptors *descriptors);
/* Return whether two descriptors are equal in their significant bits. */
bool is_like(const void *descriptor, const uint64_t *made, const struct meaning *meaning);

enum { KNOWN = 1024 }; /* a power of two; entries of a caller's cache */

#endif
