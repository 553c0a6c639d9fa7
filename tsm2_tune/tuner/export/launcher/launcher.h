/* The plan cache for PyTorch's tensors and CuPy's arrays in C. tsm2_tune/runtime/launcher.py loads it;
   tsm2_tune/runtime/plan_cache.py is the same in Python, and is called if a product cannot be started here. */

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

#include "core.h"
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

struct key { /* all that determines the launch, except `asked`; its padding is 0 */
    struct matrix matrices[MATRICES];
    uint64_t type;            /* DLPack's, or the address of CuPy's */
    int32_t device_type, device;
    int32_t has_out, is_same; /* whether a and b are at one address */
};

struct array_info { /* an array's description of itself */
    uint64_t at, type;
    struct matrix matrix;
    int32_t device_type, device;
    bool is_complex;
};

struct entry { /* a Plan of Python's; `slot` is the constant part of its Slot's memory */
    struct key key;
    uint64_t hash;
    Py_ssize_t references;
    PyObject *asked, *shape_of_out, *type_of_out; /* the arguments of make_out */
    PyObject *start;                              /* the plan's method; NULL if the entry was made here */
    launch_function launch;
    void *kernel; /* NULL: the vendor computes such products */
    unsigned char slot[MOST_SLOT_BYTES];
    Py_ssize_t slot_bytes;
    int at_matrices[MATRICES], at_factors[2], at_stream; /* bytes into the slot */
    unsigned char parameters[MOST_PARAMETERS];           /* the same for the kernel's parameters, in its order */
    Py_ssize_t parameter_count;
    uint64_t spans[MATRICES]; /* bytes */
    uint64_t alignment_mask;  /* address bits that must be 0, for alignment to an element; 0 for the vendor's */
    double largest;           /* largest finite factor */
    int scalar;               /* type of the factors, as NumPy's character */
    PyObject *workspace;      /* its key on the legacy stream; None: the kernel needs none */
    uint64_t needed_bytes[WORKSPACE_PARTS];
    int at_workspace; /* bytes into the slot, to two addresses 16 bytes apart */
};

struct home { /* a device, and the kernels loaded in the context of its arrays */
    int32_t device_type, device;
    char name[MOST_NAME_BYTES];  /* the GPU's */
    PyObject *workspace;         /* key of its legacy stream's workspace */
    launch_function launch;
    void **kernels;              /* by the pack's kernel and index width; NULL: not loaded */
    uint64_t types[TYPES];       /* as in a key, where new_out is not NULL */
    PyObject *new_out[TYPES];    /* tensors: keyword arguments of make_out; CuPy's arrays: their dtype */
};

struct launcher {
    PyObject_HEAD
    PyObject *plain, *kinds, *stream_of, *make_out, *current_device; /* Python's starter and the library's functions */
    PyObject *workspaces;                                            /* Python's dict of them, by key */
    PyObject *by_vendor;                                             /* Python's function for the vendor's products */
    PyObject *names[NAMES];
    PyObject *exchange_owner;
    const struct dl_exchange *exchange; /* for tensors; NULL: for CuPy's arrays */
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

/* module_pack.c */

/* The module's pack; NULL: it is not open. */
const struct core_pack *opened_pack(void);

/* open_pack(bytes): open the pack, among whose kernels first calls choose. ValueError says what is wrong with it. */
PyObject *open_pack(PyObject *module, PyObject *bytes);

/* arrays.c */

/* Read an array's description. False, perhaps with an exception, if that fails. */
bool read_array(struct launcher *self, PyObject *array, struct array_info *info);

/* Read the call's key and addresses. False if Python has to check the call. */
bool read_call(struct launcher *self, PyObject *const *arguments, struct call *call);

/* plan_cache.c: entries are counted references, all under the GIL. */

void drop(struct entry *entry);
void forget(struct launcher *self);

/* Whether `asked` is None or a tuple of built-in constants and strings, which compare without running other code. */
bool is_plain(PyObject *asked);

/* Put the entry with this `asked` into the table, in place of an older one. */
void put_entry(struct launcher *self, struct entry *entry, PyObject *asked);

/* The call's entry; NULL if there is none. */
struct entry *entry_of(struct launcher *self, const struct call *call, PyObject *asked);

/* first_call.c */

/* Make an entry for the call and put it into the table. Return a reference for the caller; NULL, perhaps with an
   exception, if Python has to decide. */
struct entry *first_entry(struct launcher *self, const struct call *call, PyObject *asked);

/* The device's home; NULL if it has none. */
struct home *home_of(struct launcher *self, int32_t device_type, int32_t device);

void forget_homes(struct launcher *self);

/* start.c, plan_cache.c and first_call.c: the launcher's methods. */

PyObject *start(PyObject *object, PyObject *const *arguments, Py_ssize_t count);
PyObject *add(PyObject *object, PyObject *arguments);
PyObject *know(PyObject *object, PyObject *arguments);

#endif
