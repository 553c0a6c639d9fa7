/* The library that stands in for cuBLAS in a program, put before it by LD_PRELOAD.

   routines.c defines cuBLAS's routines for products, lt.c cuBLASLt's. Each describes its product as a `struct asked`
   (product.c, lt_descriptors.c) and passes it to dispatch.c. If the pack's kernel is expected to be faster, streams.c
   starts it; any other call goes to cuBLAS as it is (real_cublas.c). On request products are written down (journal.c),
   their GPU time is taken (times.c), and their results are compared with cuBLAS's (verify.c). */

#ifndef STANDIN_H
#define STANDIN_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tsm2.h"

#define EXPORTED __attribute__((visibility("default")))

/* cuBLAS's numbers */
enum { CUBLAS_SUCCESS = 0, CUBLAS_NOT_INITIALIZED = 1 };
enum { HOST_POINTERS = 0, FILL_LOWER = 0, FILL_UPPER = 1 };
enum { MATH_KIND = 15, DEFAULT_MATH = 0, PEDANTIC_MATH = 2, BF16X9_MATH = 4 }; /* of a math mode */
enum { R_32F = 0, R_64F = 1, R_16F = 2, C_32F = 4, C_64F = 5, R_16BF = 14 }; /* cudaDataType_t */
enum { COMPUTE_32F = 68, COMPUTE_32F_PEDANTIC = 69, COMPUTE_64F = 70, COMPUTE_64F_PEDANTIC = 71 };

typedef void *cublas_handle;

/* The interposed routines; journal.py has their names in this order. */
enum routine { GEMM, GEMM_EX, GEMM_BATCHED, GEMM_BATCHED_EX, GEMV, SYRK, HERK, LT_MATMUL, ROUTINES };

/* Why a product went to cuBLAS; journal.py has the sentences in this order. NOT_LEFT: it did not. */
enum reason {
    NOT_LEFT,
    NO_PACK,        /* there is none, or none that can be used */
    NO_KERNEL,      /* for this product and GPU */
    EXPECTED,       /* cuBLAS is predicted to be faster, or as fast */
    BATCH,          /* a batch that is no single product */
    PRECISION,      /* the program allows less precision, or the type has no kernel */
    DEVICE_FACTORS, /* alpha and beta are in device memory */
    FEWER_SMS,      /* the program wants multiprocessors left free */
    ZERO,           /* alpha or an extent is 0, an argument is wrong, or C overlaps A or B */
    STRIDES,        /* of a vector */
    CAPTURED,       /* into a CUDA graph, where the kernel is not loaded, or there is no room for its workspace */
    NO_MEMORY,      /* for a workspace */
    FAILED,         /* the kernel could not be started */
    OFF,            /* the kernel's result was outside of the bound */
    CROWD,          /* more contexts than lanes */
    TIMED,          /* cuBLAS is timed, to compare */
    COMPARED,       /* its result is compared; the program gets cuBLAS's */
    EPILOGUE,       /* cuBLASLt applies an epilogue */
    MORE,           /* another option of cuBLASLt: an order, C apart from D, an unknown attribute */
    SLOWER,         /* the kernel was slower in this program */
    REASONS
};

/* The whole of C, or a triangle with the diagonal. */
enum part { WHOLE_C, LOWER_C, UPPER_C };

/* A product as the program describes it, column-major. HERK's factors are real, also for complex types. */
struct asked {
    enum routine routine;
    int type; /* a tsm2_type; -1: unknown */
    int transa, transb;
    int64_t m, n, k;
    const void *alpha, *A;
    int64_t lda;
    const void *B;
    int64_t ldb;
    const void *beta;
    void *C;
    int64_t ldc;
    int64_t batches;       /* products in the call */
    enum reason unfit;     /* why no kernel can compute it, or NOT_LEFT */
    enum part part;        /* of C, the only part to write */
    cublas_handle handle;  /* for a triangle, which its routines copy */
};

/* Why a product has no line of the journal; journal.py has the sentences in this order. */
enum uncounted { CROWDED, UNKNOWN, WITHOUT_DRIVER, UNCOUNTED };

enum { LINES = 16384 }; /* a power of two */
enum { SAMPLES = 5 };   /* for each of the two ways to compute a product */
enum way { BY_CUBLAS, BY_KERNEL, WAYS };

/* A line of the journal: the decision, counts and times of one kind of product. journal.py reads it in other processes. */
struct line {
    _Atomic uint32_t state; /* 0: free, 1: being written, 2: written */
    int32_t routine, type, transa, transb, device, is_gram;
    _Atomic int32_t decision; /* an enum reason; NOT_LEFT: start the kernel; -1: undecided */
    int64_t m, n, k, lda, ldb, ldc, batches;
    double expected_us, cublas_expected_us; /* 0: not known */
    _Atomic uint64_t calls, taken, left[REASONS];
    _Atomic uint64_t captured;             /* calls captured into CUDA graphs, which may run at any time */
    _Atomic uint64_t first_ns;             /* GPU time of the first product by cuBLAS, or by the kernel */
    _Atomic uint64_t timed, gpu_ns;        /* other timed products, and the sum of their GPU times */
    _Atomic uint32_t sampled[WAYS];        /* number of samples */
    uint32_t sample_ns[WAYS][SAMPLES];     /* from the product's turn on its stream to its end */
    _Atomic uint64_t compared;
    double worst; /* largest difference from cuBLAS's result, over the bound */
};

struct journal {
    char magic[8];
    uint32_t line_bytes, lines;
    int64_t process;
    char program[216];
    _Atomic uint64_t uncounted[UNCOUNTED]; /* products without a line */
    struct line at[LINES];
};

/* settings.c: the stand-in's settings, from the environment. */
struct settings {
    const char *pack, *journal; /* paths; NULL: none */
    bool has_times;
    int compared; /* products of each line to compare */
};
extern struct settings settings;
/* Read the settings, once: in a constructor, before the program can change its environment, or at an earlier product. */
void read_settings_once(void);

/* Write a line to standard error. */
void tell(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* product.c */

int element_bytes(int type);
/* The tsm2_type of matrices and compute type as kernels multiply them; -1 if none does. */
int type_of(int a, int b, int c, int compute);
/* Return the product, with the reason if its arguments are no kernel's. */
struct asked checked(struct asked asked);
/* Whether a factor of the product is 0. */
bool is_zero(const struct asked *asked, const void *factor);
/* The factor in the pack's type. `parts` stores it if the program's is real and the pack's complex. */
const void *pack_factor(const struct asked *asked, const void *factor, void *parts);
/* Whether C's span of addresses overlaps that of A or B. */
bool overlaps(const struct asked *asked);

/* real_cublas.c: the libraries that the program has loaded. */

/* A kind of library: cuBLAS, cuBLASLt. */
struct kind {
    const char *plain, *hashed; /* prefixes of its file name; wheels add a hash */
    const char *function;       /* that only this kind defines */
    _Atomic(void *) first;      /* the library for unknown handles and callers */
};
extern struct kind cublas_kind, lt_kind;
/* Counts dlclose: afterwards the code at an address may be another object's. */
extern _Atomic uint64_t closings;
/* Whether the code at this address is in a library of this kind. */
bool is_code_of(const struct kind *kind, const void *address);
/* The function of this name for a call from the code at this address; NULL if there is none. */
void *function_for_code(struct kind *kind, const void *address, const char *name);

/* cuBLAS's function of this name for a call with this handle; NULL if there is none. `place` caches it. */
void *cublas_function(const char *name, cublas_handle handle, _Atomic(void *) *place);
/* The C library's dlsym. */
void *next_dlsym(void *library, const char *name);

/* journal.c */

/* Find or add the line of such products on this device; NULL if the probed places are taken. */
struct line *line_of(const struct asked *asked, int device);
/* Count a product without a line. */
void count_without_line(enum uncounted why);

/* driver.c: functions of the process's CUDA driver. */

typedef int cu_result;
typedef void *cu_stream, *cu_event, *cu_context;
typedef unsigned long long cu_pointer;
struct copy_2d { /* CUDA_MEMCPY2D */
    size_t source_x, source_y;
    int source_kind;
    const void *source_host;
    cu_pointer source_device;
    void *source_array;
    size_t source_pitch;
    size_t target_x, target_y;
    int target_kind;
    void *target_host;
    cu_pointer target_device;
    void *target_array;
    size_t target_pitch;
    size_t width_bytes, height;
};
enum { ON_HOST = 1, ON_DEVICE = 2 };
#define DRIVER(X)                                                                                                    \
    X(current_context, "cuCtxGetCurrent", (cu_context *context))                                                     \
    X(context_id, "cuCtxGetId", (cu_context context, unsigned long long *id))                                        \
    X(current_device, "cuCtxGetDevice", (int *device))                                                               \
    X(is_capturing, "cuStreamIsCapturing", (cu_stream stream, int *status))                                          \
    X(await_stream, "cuStreamSynchronize", (cu_stream stream))                                                       \
    X(create_stream, "cuStreamCreate", (cu_stream * stream, unsigned flags))                                         \
    X(exchange_capture_mode, "cuThreadExchangeStreamCaptureMode", (int *mode))                                       \
    X(create_event, "cuEventCreate", (cu_event * event, unsigned flags))                                             \
    X(record_event, "cuEventRecord", (cu_event event, cu_stream stream))                                             \
    X(destroy_event, "cuEventDestroy_v2", (cu_event event))                                                          \
    X(query_event, "cuEventQuery", (cu_event event))                                                                 \
    X(elapsed, "cuEventElapsedTime", (float *ms, cu_event begin, cu_event end))                                      \
    X(allocate, "cuMemAlloc_v2", (cu_pointer * address, size_t bytes))                                               \
    X(release, "cuMemFree_v2", (cu_pointer address))                                                                 \
    X(set_words, "cuMemsetD2D32Async",                                                                               \
      (cu_pointer address, size_t pitch, unsigned value, size_t words, size_t height, cu_stream stream))             \
    X(copy, "cuMemcpy2DAsync_v2", (const struct copy_2d *copy, cu_stream stream))
struct driver_functions {
#define MEMBER(name, symbol, parameters) cu_result(*name) parameters;
    DRIVER(MEMBER)
#undef MEMBER
};
/* NULL if the process has no driver, or an older one. */
const struct driver_functions *driver(void);
/* Allow this thread calls that would invalidate a capture on another stream: allocate, load, wait, query events. Return
   the previous mode, for restore_captures. */
int relax_captures(void);
void restore_captures(int mode);
/* Whether the stream is captured into a CUDA graph, or that is not known. */
bool is_capturing(cu_stream stream);

/* streams.c: a lane is one tsm2 handle per context and stream. With many streams several share one. */

struct lane {
    unsigned long long context;
    cu_stream stream;
    const void *thread; /* of a per-thread stream; NULL: any thread */
    tsm2_handle handle; /* NULL: the pack cannot create one for this context */
    pthread_mutex_t lock;
    cu_stream aside;    /* see aside_of; NULL: not yet created */
    cu_pointer scratch; /* for products that write a triangle; 0: not yet allocated */
    int device;
};
/* The lane of the stream in the current context; NULL with a reason. */
struct lane *lane_of(cu_stream stream, enum reason *reason);
/* The decision of the line, made with the lane's handle if there is none. The product itself may have a kernel. */
enum reason decided(struct lane *lane, const struct asked *asked, struct line *line);
/* A side stream without the program's work, one for each context; NULL if it cannot be created. */
cu_stream aside_of(struct lane *lane);
/* Start the kernel on the stream: NOT_LEFT, or why it was not started. */
enum reason start_kernel(struct lane *lane, cu_stream stream, const struct asked *asked);

/* triangle.c */

enum { MOST_OF_TRIANGLE = 256 }; /* columns of C that the scratch memory can hold */
/* Compute the triangle of C, with the kernel started by `start`. The lane is locked, and its stream is this one. */
enum reason start_triangle(struct lane *lane, cu_stream stream, const struct asked *asked,
                           enum reason (*start)(struct lane *, cu_stream, const struct asked *));

/* dispatch.c */

struct visit {
    struct line *line;
    cu_stream stream;
    struct waiting *waiting; /* for its time; NULL: it is not timed */
    struct comparison *comparison; /* NULL: none */
    bool is_first, is_taken;
};
/* Start the product's kernel if one is to compute it. If false, the caller calls cuBLAS. Then it calls end_visit. */
bool begin_visit(struct visit *visit, cublas_handle handle, const struct asked *asked);
/* The same for a product with a stream and without a handle's settings. */
bool begin_visit_on(struct visit *visit, cu_stream stream, const struct asked *asked);
int end_visit(struct visit *visit, int status);
extern _Thread_local int is_inside; /* depth of calls into cuBLAS, whose own calls are not the program's */

/* times.c */

/* Begin to time the work that follows on the visit's stream, unless too many products are pending. */
void begin_time(struct visit *visit, struct lane *lane);
void end_time(struct visit *visit);

/* verify.c */

/* Run the kernel and keep its result, restore C, and keep what the bound needs. NULL without memory, or if the kernel was
   not started. The caller then runs cuBLAS's routine and calls end_comparison. */
struct comparison *begin_comparison(struct lane *lane, cu_stream stream, const struct asked *asked);
/* Compare with C. The line's decision becomes OFF if the kernel's result is outside of the bound. Without a line, after
   an error of cuBLAS, nothing is compared. */
void end_comparison(struct comparison *comparison, struct line *line);

#endif
