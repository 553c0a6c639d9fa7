/* The short way through gemm of PyTorch's tensors and CuPy's arrays, compiled. tsm2_tune/runtime/launcher.py loads it and says what it
   does; tsm2_tune/runtime/plan_cache.py is the same in Python, which is called for whatever needs a closer look. */

#ifndef LAUNCHER_H
#define LAUNCHER_H

#define Py_LIMITED_API 0x030B0000 /* one binary for CPython 3.11 and all later ones */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "dlpack_exchange.h"

enum { A, B, OUT, MATRICES };
enum { ARRAY_A, ARRAY_B, ARRAY_OUT, ALPHA, BETA, ASKED, STREAM, ARGUMENTS }; /* of `start` */
enum { LEGACY_STREAM = 1, WORKSPACE_PARTS = 2, ARGUMENT_BYTES = 16 };
enum { TYPES = 6, INDEX_WIDTHS_HERE = 2, MOST_HOMES = 16, MOST_NAME_BYTES = 256 }; /* of tsm2_type; of an index: 32 and 64 bits */
enum { MOST_SLOT_BYTES = 256, MOST_PARAMETERS = 32, BUCKETS = 8192, MOST_ENTRIES = 4096 };

enum { REQUIRES_GRAD, IS_NEG, IS_CONJ, SHAPE, CONTIGUOUS, STRIDES, DTYPE, DATA, PTR, DEVICE_ID, SIZES_BYTES, ADDRESSES, OWNERS,
       NAMES };

typedef int (*launch_function)(const void *config, void *kernel, void **parameters, void **extra);

struct matrix {
    int64_t extents[2], strides[2];
    int32_t dimensions, is_conjugate;
};

struct key { /* all that decides the launch, but for `asked`; its padding is 0 */
    struct matrix matrices[MATRICES];
    uint64_t type;            /* DLPack's, or the address of CuPy's */
    int32_t device_type, device;
    int32_t has_out, is_same; /* whether a and b are at one address */
};

struct told { /* by an array */
    uint64_t at, type;
    struct matrix matrix;
    int32_t device_type, device;
    bool is_complex;
};

struct entry { /* a plan of Python's, Plan, whose launch is `slot`: what does not change in Slot's memory */
    struct key key;
    uint64_t hash;
    Py_ssize_t references;
    PyObject *asked, *shape_of_out, *type_of_out; /* the arguments of make_out */
    PyObject *start;                              /* the plan's own; NULL of an entry that was made here */
    launch_function launch;
    void *kernel; /* NULL: such products are the vendor's */
    unsigned char slot[MOST_SLOT_BYTES];
    Py_ssize_t slot_bytes;
    int at_matrices[MATRICES], at_factors[2], at_stream; /* bytes into the slot */
    unsigned char parameters[MOST_PARAMETERS];           /* so too, of the kernel's parameters in its order */
    Py_ssize_t parameter_count;
    uint64_t spans[MATRICES]; /* bytes */
    uint64_t alignment_mask;  /* bits that no address has: those below an element's bytes; 0 of the vendor's */
    double largest;           /* finite factor */
    int scalar;               /* its type, as NumPy's character */
    PyObject *workspace;      /* its key where the stream is the legacy one, or None: the kernel needs none */
    uint64_t needed_bytes[WORKSPACE_PARTS];
    int at_workspace; /* bytes into the slot, of two addresses 16 bytes apart */
};

struct home { /* a device, and what is loaded in the context of its arrays */
    int32_t device_type, device;
    char name[MOST_NAME_BYTES];  /* the GPU's */
    PyObject *workspace;         /* the key of its legacy stream's */
    launch_function launch;
    void **kernels;              /* by winner and width of index; NULL: not loaded */
    uint64_t types[TYPES];       /* as a key has it, where there is a new_out */
    PyObject *new_out[TYPES];    /* of tensors: what make_out is told beside shape and strides; of CuPy's arrays: their dtype */
};

struct launcher {
    PyObject_HEAD
    PyObject *plain, *kinds, *stream_of, *make_out, *current_device; /* what Python's short way has besides */
    PyObject *workspaces;                                            /* by key, as Python keeps them */
    PyObject *by_vendor;                                             /* what computes the vendor's products */
    PyObject *names[NAMES];
    PyObject *exchange_owner;
    const struct dl_exchange *exchange; /* of tensors; NULL: arrays of CuPy */
    struct entry *table[BUCKETS];
    int entries;
    struct home homes[MOST_HOMES];
    int home_count;
};

struct call {
    struct key key;
    uint64_t at[MATRICES];
    struct entry *entry;
};

/* arrays.c */

/* What an array says of itself; false, perhaps with an exception, where it does not. */
bool read_array(struct launcher *self, PyObject *array, struct told *told);

/* The call's key and addresses; false where a closer look is needed. */
bool read_call(struct launcher *self, PyObject *const *arguments, struct call *call);

/* plan_cache.c: an entry is held by each of its references, all under Python's lock. */

void drop(struct entry *entry);
void forget(struct launcher *self);

/* Whether `asked` is None or a tuple of Python's own constants and texts, which compare without running other code. */
bool is_plain(PyObject *asked);

/* Puts the entry, which is of what was asked, into the table, in the place of one before. */
void put_entry(struct launcher *self, struct entry *entry, PyObject *asked);

/* The entry of the call; NULL where none is. */
struct entry *entry_of(struct launcher *self, const struct call *call, PyObject *asked);

/* first_call.c */

/* The entry of a call that has none, held for the caller, also in the table; NULL, perhaps with an exception, where
   Python decides. */
struct entry *first_entry(struct launcher *self, const struct call *call, PyObject *asked);

/* What is known of the device; NULL where nothing is. */
struct home *home_of(struct launcher *self, int32_t device_type, int32_t device);

void forget_homes(struct launcher *self);

/* start.c, plan_cache.c and first_call.c: the launcher's methods. */

PyObject *start(PyObject *object, PyObject *const *arguments, Py_ssize_t count);
PyObject *add(PyObject *object, PyObject *arguments);
PyObject *know(PyObject *object, PyObject *arguments);

#endif
