/* A handle's state, and the functions that calls are composed of. */

#ifndef TSM2_HANDLE_H
#define TSM2_HANDLE_H

#include <pthread.h>

#include "driver.h"
#include "pack.h"
#include "product.h"

#define EXPORTED __attribute__((visibility("default"))) /* all else is hidden */

enum { CHOICES = 2048, WAYS = 8, ERROR_BYTES = 512 }; /* entries and ways of the cache of choices; bytes of
                                                       the last error */

/* Memory for a kernel that splits k: partial sums, and counters, which are 0 between launches. */
struct workspace {
    cu_pointer partials, counters;
    uint64_t partials_bytes, counters_bytes;
};

/* Kernels loaded in a context, for one handle or for several that share them. */
struct kernels {
    pthread_mutex_t lock;
    int holders;
    cu_module *modules; /* by cubin; NULL: not loaded */
    cu_function *functions;
};

/* An entry of the cache of choices. */
enum { SINGLE_KEY_WORDS = 4, KEY_WORDS = 11 }; /* the other words, strides and leading dimensions, are those of a batch */
struct cached_choice {
    int64_t key[KEY_WORDS];
    struct core_choice choice; /* CORE_NO_KERNEL: the entry is free */
};

struct tsm2_state {
    struct driver driver;
    const struct core_pack *pack;
    cu_context context; /* in which it was created */
    cu_stream stream;
    char device[256], architecture[16];
    int device_index;            /* in the pack, or CORE_OTHER_GPU */
    int (*cubins)[INDEX_WIDTHS]; /* by kernel and index width; -1: none for this GPU */
    struct kernels *kernels;
    cu_function *functions; /* by cubin, for those that this handle has used; else NULL */
    struct workspace own, given; /* `given`: the caller's, if it has bytes */
    unsigned long long own_stream_id; /* of the stream that last used `own` */
    struct cached_choice choices[CHOICES];
    unsigned evictions; /* selects the next way to replace */
    char error[ERROR_BYTES];
};

/* status.c */

/* Return the status, after writing the formatted text as the handle's last error. */
tsm2_status fail(tsm2_handle handle, tsm2_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Return success, or the error of the driver's function of this name. */
tsm2_status answered(tsm2_handle handle, const char *name, cu_result result);

/* Make the handle's context current, unless it is. `leave` undoes that and returns `status`. */
tsm2_status enter(tsm2_handle handle, int *has_entered);
tsm2_status leave(tsm2_handle handle, int has_entered, tsm2_status status);

/* arguments.c */

/* Check operations, extents and leading dimensions as BLAS does. Errors have the argument's position. */
tsm2_status check_shapes(tsm2_handle handle, const struct call *call);

/* Check that the strides of a batch with elements are none that are negative, and that its matrices of C do not overlap:
   they lie one after another, or the columns of all lie side by side in each column of one matrix. */
tsm2_status check_strides(tsm2_handle handle, const struct call *call);

/* Check that no factor or matrix is NULL, and that each is aligned to an element. The product has elements. */
tsm2_status check_addresses(tsm2_handle handle, const struct call *call);

/* pointers.c */

/* Set the matrices and strides of a call, whose shapes are checked and have elements, from arrays of pointers. They are
   read only if they are in host memory. */
tsm2_status read_pointers(tsm2_handle handle, struct call *call, const void *const A[], const void *const B[],
                          void *const C[]);

/* gemm.c */

/* Clear the last error, and check the handle and the shapes of a call. *has_elements: whether C has elements. */
tsm2_status begin(tsm2_handle handle, const struct call *call, int *has_elements);

/* Start the product of a call, after checking it. */
tsm2_status multiply(tsm2_handle handle, const struct call *call);

/* Find the kernel that a call would start, without starting it. */
tsm2_status ask(tsm2_handle handle, const struct call *call, struct core_choice *choice);

/* Refuse a launch that is larger than CUDA allows. */
tsm2_status check_launch(tsm2_handle handle, const struct core_choice *choice);

/* load.c */

/* Return the library's pack, which the first call opens; NULL, and why, if it does not open. */
const struct core_pack *library_pack(const char **fault);

/* Return success if the library has a binary of the kernel for this GPU. */
tsm2_status find_kernel(tsm2_handle handle, int kernel, int width);

/* Load the kernel for an index of this width, if it is not loaded. */
tsm2_status load_kernel(tsm2_handle handle, int kernel, int width, cu_function *function);

/* workspace.c */

/* Find or allocate a workspace with these bytes of partial sums and of zeroed counters. */
tsm2_status take_workspace(tsm2_handle handle, uint64_t partials_bytes, uint64_t counters_bytes,
                           struct workspace *taken);

/* The bytes of a caller's workspace that contains these. */
uint64_t whole_workspace_bytes(uint64_t partials_bytes, uint64_t counters_bytes);

/* Evaluate an expression of type tsm2_status and return it from the function unless it is success. */
#define TRY(expression)                                                                                              \
    do {                                                                                                             \
        const tsm2_status status_ = (expression);                                                                    \
        if (status_ != TSM2_SUCCESS)                                                                                 \
            return status_;                                                                                          \
    } while (0)

#endif
