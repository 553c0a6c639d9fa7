/* A handle, and what its calls are made of. */

#ifndef TSM2_HANDLE_H
#define TSM2_HANDLE_H

#include <pthread.h>

#include "driver.h"
#include "product.h"

enum { MEMORY = 2048, WAYS = 8, ERROR_BYTES = 512 }; /* products whose choice is remembered, and places of each; of the
                                                       last error's text */

/* Memory for a kernel that splits k: its sums, and counters, which are 0 between launches. */
struct workspace {
    cu_pointer partials, counters;
    uint64_t partials_bytes, counters_bytes;
};

/* Kernels that are loaded in a context, of one handle or of several that share them. */
struct kernels {
    pthread_mutex_t lock;
    int holders;
    cu_module *modules; /* of each cubin; NULL: not loaded */
    cu_function *functions;
};

/* A product whose winner was chosen. */
struct remembered {
    int64_t key[4];
    struct match match; /* no winner: there is nothing here */
};

struct tsm2_state {
    struct driver driver;
    cu_context context; /* that it was made in */
    cu_stream stream;
    char device[256], architecture[16];
    int (*cubins)[INDEX_WIDTHS]; /* of each winner by width of index; -1 where none is for this GPU */
    struct kernels *kernels;
    cu_function *functions; /* of the cubins that this handle has used; else NULL */
    struct workspace own, given; /* the caller's, if it has bytes */
    unsigned long long own_stream_id; /* where the own one was last used */
    struct remembered memory[MEMORY];
    unsigned forgotten; /* of them so many: which place of a product's is the next to go */
    char error[ERROR_BYTES];
};

/* The status, after the text, as printf has it, was written as the handle's last error. */
tsm2_status fail(tsm2_handle handle, tsm2_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Success, or what the driver answered to the call of this name. */
tsm2_status answered(tsm2_handle handle, const char *name, cu_result result);

/* Makes the handle's context current, unless it is; `leave` ends that, and returns the status. */
tsm2_status enter(tsm2_handle handle, int *has_entered);
tsm2_status leave(tsm2_handle handle, int has_entered, tsm2_status status);

/* Whether a binary of the winner's kernel for this GPU is here. */
tsm2_status find_kernel(tsm2_handle handle, const struct winner *winner, int width);

/* The winner's kernel, loaded, for an index of this width. */
tsm2_status load_kernel(tsm2_handle handle, const struct winner *winner, int width, cu_function *function);

/* Room for so many bytes of sums and of zeroed counters. */
tsm2_status take_workspace(tsm2_handle handle, uint64_t partials_bytes, uint64_t counters_bytes,
                           struct workspace *taken);

/* The bytes of a caller's workspace that has room for so many. */
uint64_t whole_workspace_bytes(uint64_t partials_bytes, uint64_t counters_bytes);

/* Runs an expression that ends with a status; returns where it is none of success. */
#define TRY(expression)                                                                                              \
    do {                                                                                                             \
        const tsm2_status status_ = (expression);                                                                    \
        if (status_ != TSM2_SUCCESS)                                                                                 \
            return status_;                                                                                          \
    } while (0)

#endif
