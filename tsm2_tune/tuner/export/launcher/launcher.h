/* The short way through gemm of PyTorch's tensors, compiled. tsm2_tune/runtime/compiled.py loads it and says what it
   does; tsm2_tune/runtime/fast.py is the same in Python, which is called for whatever needs a closer look. */

#ifndef LAUNCHER_H
#define LAUNCHER_H

#define Py_LIMITED_API 0x030B0000 /* one binary for CPython 3.11 and all later ones */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "dlpack_exchange.h"

enum { A, B, OUT, MATRICES };
enum { ARRAY_A, ARRAY_B, ARRAY_OUT, ALPHA, BETA, ASKED, STREAM, ARGUMENTS }; /* of `start` */
enum { MOST_SLOT_BYTES = 256, MOST_PARAMETERS = 32, BUCKETS = 8192, MOST_ENTRIES = 4096 };

typedef int (*launch_function)(const void *config, void *kernel, void **parameters, void **extra);

struct matrix {
    int64_t extents[2], strides[2];
    int32_t dimensions, is_conjugate;
};

struct key { /* all that decides the launch, but for `asked`; its padding is 0 */
    struct matrix matrices[MATRICES];
    struct dl_device device;
    struct dl_type type;
    int32_t has_out, is_same; /* whether a and b are at one address */
};

struct entry { /* a plan of Python's, Plan, whose launch is `slot`: what does not change in Slot's memory */
    struct key key;
    uint64_t hash;
    Py_ssize_t references;
    PyObject *asked, *start, *shape_of_out, *type_of_out; /* `start` is the plan's own; the arguments of empty_strided */
    launch_function launch;
    void *kernel;
    unsigned char slot[MOST_SLOT_BYTES];
    Py_ssize_t slot_bytes;
    int at_matrices[MATRICES], at_factors[2], at_stream; /* bytes into the slot */
    unsigned char parameters[MOST_PARAMETERS];           /* so too, of the kernel's parameters in its order */
    Py_ssize_t parameter_count;
    uint64_t spans[MATRICES]; /* bytes */
    double largest;           /* finite factor */
    int scalar;               /* its type, as NumPy's character */
    int has_workspace;        /* which only the plan's `start` knows */
};

struct launcher {
    PyObject_HEAD
    PyObject *plain, *kinds, *stream_of, *empty_strided, *current_device; /* what Python's short way has besides */
    PyObject *requires_grad, *is_neg, *is_conj;                           /* names */
    PyObject *exchange_owner;
    const struct dl_exchange *exchange;
    struct entry *table[BUCKETS];
    int entries;
};

struct call {
    struct key key;
    uint64_t at[MATRICES];
    struct entry *entry;
};

/* tensors.c */

/* The call's key and addresses; false where a closer look is needed. */
bool read_call(struct launcher *self, PyObject *const *arguments, struct call *call);

/* entries.c: an entry is held by each of its references, all under Python's lock. */

void drop(struct entry *entry);
void forget(struct launcher *self);

/* Whether `asked` is None or a tuple of Python's own constants and texts, which compare without running other code. */
bool is_plain(PyObject *asked);

/* The entry of the call; NULL where none is. */
struct entry *entry_of(struct launcher *self, const struct call *call, PyObject *asked);

/* start.c and entries.c: the launcher's methods. */

PyObject *start(PyObject *object, PyObject *const *arguments, Py_ssize_t count);
PyObject *add(PyObject *object, PyObject *arguments);

#endif
