/* What the winners in the pack are asked: of plain C types, beside Python's and the pack's own. */

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

/* choose(type, (m, n, k), (ld, ld) of a, of b and of out, (conj_a, conj_b), is_gram, device): by the winner's place. */
PyObject *choose_winner(PyObject *module, PyObject *arguments);

/* How many winners there are to choose from. */
int winners_here(void);

/* A product of matrices as they lie in memory, none of which is conjugated. */
struct request {
    int type; /* a tsm2_type */
    int64_t m, n, k;
    int64_t ld[3][2]; /* of a, b and out: column-major and row-major; 0: it is not. Of an `out` that is made none */
    bool has_out, is_gram;
};

/* The winner that it gets, and its launch. */
struct decision {
    int winner, width;            /* its place; of its index, 0 for 32 and 1 for 64 bits */
    bool is_swapped;              /* it computes the transposed product: b's matrix is its A */
    bool is_row_major;            /* `out` is, where it is made */
    bool is_vendors;              /* the vendor is expected to be faster, or nearly as fast */
    int64_t extents[3], ld[3];    /* of what it computes: m, n and k; of its A, B and C */
    uint32_t blocks[2], threads, smem_bytes;
    uint64_t workspace_bytes[2];  /* of sums and of counters; zeros: it needs none */
};

/* False where no winner is for it, or which one depends on more than the launcher looks at. */
bool decide(const struct request *request, const char *device, struct decision *decision);

int64_t bytes_of_element(int type);

#endif
