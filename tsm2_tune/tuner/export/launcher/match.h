/* Choose among the pack's winners. The types here are plain C, so that Python's headers and the pack's stay apart. */

#ifndef TSM2_MATCH_H
#define TSM2_MATCH_H

#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030B0000
#endif
#ifndef PY_SSIZE_T_CLEAN
#define PY_SSIZE_T_CLEAN
#endif
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

/* choose(type, (m, n, k), (ld, ld) of a, of b and of out, (conj_a, conj_b), is_gram, device): by the winner's index. */
PyObject *choose_winner(PyObject *module, PyObject *arguments);

/* The number of winners. */
int winners_here(void);

/* A product of matrices as they are stored, without conjugation. */
struct request {
    int type; /* a tsm2_type */
    int64_t m, n, k;
    int64_t ld[3][2]; /* of a, b and out, column-major and row-major; 0: not in this order. A new `out` has none */
    bool has_out, is_gram;
};

/* The chosen winner and its launch. */
struct decision {
    int winner, width;            /* the winner's index; the index width, 0 for 32 and 1 for 64 bits */
    bool is_swapped;              /* it computes the transposed product: b's matrix is its A */
    bool is_row_major;            /* a new `out` is row-major */
    bool is_vendors;              /* the vendor is predicted to be faster, or nearly as fast */
    int64_t extents[3], ld[3];    /* m, n and k of what it computes; leading dimensions of its A, B and C */
    uint32_t blocks[2], threads, smem_bytes;
    uint64_t workspace_bytes[2];  /* of partial sums and of counters; zeros: none */
};

/* Choose for the request. False if no winner takes it, or the choice depends on more than the request. */
bool decide(const struct request *request, const char *device, struct decision *decision);

int64_t bytes_of_element(int type);

#endif
