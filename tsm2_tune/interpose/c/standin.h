/* The stand-in: a shared library that LD_PRELOAD loads before cuBLAS into an unchanged program.

   routines.c defines cuBLAS's routines for matrix products, lt.c that of cuBLASLt. Each routine describes its product
   as a `struct asked` (routines.c, lt_descriptors.c) and passes it to dispatch.c. If a tuned kernel is expected to be
   faster, streams.c launches it. The kernels are in another library, the pack. All other calls go unchanged to cuBLAS
   (real_cublas.c). Depending on the settings, products are recorded in a file, the journal (journal.c), their GPU time
   is measured (times.c), and their results are compared with those of cuBLAS (verify.c). */

#ifndef STANDIN_H
#define STANDIN_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tsm2.h"

#define EXPORTED __attribute__((visibility("default")))

/* Values of cuBLAS's constants */
enum { CUBLAS_SUCCESS = 0, CUBLAS_NOT_INITIALIZED = 1 };
enum { HOST_POINTERS = 0, FILL_LOWER = 0, FILL_UPPER = 1 };
enum { MATH_KIND = 15, DEFAULT_MATH = 0, PEDANTIC_MATH = 2, BF16X9_MATH = 4 }; /* parts of a cublasMath_t */
enum { R_32F = 0, R_64F = 1, R_16F = 2, C_32F = 4, C_64F = 5, R_16BF = 14 }; /* cudaDataType_t */
enum { COMPUTE_32F = 68, COMPUTE_32F_PEDANTIC = 69, COMPUTE_64F = 70, COMPUTE_64F_PEDANTIC = 71 };

typedef void *cublas_handle;

/* The intercepted routines; journal.py has their names in this order. */
enum routine {
    GEMM,
    GEMM_EX,
    GEMM_STRIDED,
    GEMM_STRIDED_EX,
    GEMM_POINTERS,
    GEMM_POINTERS_EX,
    GEMV,
    SYRK,
    HERK,
    LT_MATMUL,
    ROUTINES
};

/* Reasons why cuBLAS computes a product; journal.py has a text for each, in this order. NOT_LEFT: a kernel computes it. */
enum reason {
    NOT_LEFT,
    NO_PACK,        /* there is no pack, or it cannot be used */
    NO_KERNEL,      /* the pack has no kernel for this product and GPU */
    EXPECTED,       /* cuBLAS is predicted to be at least as fast */
    POINTERS_ONLY,  /* the batch's matrices are given by pointers in device memory */
    PRECISION,      /* the program allows cuBLAS a lower precision, or the type has no kernel */
    DEVICE_FACTORS, /* alpha and beta are in device memory */
    FEWER_SMS,      /* the program reserves multiprocessors (cublasSetSmCountTarget) */
    ZERO,           /* alpha or an extent is 0, an argument is wrong, or C overlaps A or B */
    STRIDES,        /* a vector has an unsuitable stride */
    CAPTURED,       /* the stream is being captured, and the kernel is not loaded or has no workspace */
    NO_MEMORY,      /* no memory for a workspace */
    FAILED,         /* the launch failed */
    OFF,            /* the kernel's result was outside of the error bound */
    CROWD,          /* there are more contexts or streams than lanes */
    TIMED,          /* cuBLAS is timed, to compare it with the kernel */
    COMPARED,       /* the kernel's result is compared; the program gets that of cuBLAS */
    EPILOGUE,       /* cuBLASLt applies an epilogue */
    MORE,           /* another option of cuBLASLt: a storage order, C different from D, an unknown attribute */
    SLOWER,         /* the kernel was slower than cuBLAS in this program */
    REASONS
};

/* The part of C to write: all of C, or a triangle with its diagonal. */
enum part { WHOLE_C, LOWER_C, UPPER_C };

/* The arguments of a call that computes a product, column-major. The alpha and beta of HERK are real numbers, also for
   complex types. */
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
    int64_t batches;       /* number of products in the call */
    int64_t stride_a, stride_b, stride_c; /* from a product's matrix to the next's, in elements; 0 for one product */
    enum reason unfit;     /* why no kernel can compute the product, or NOT_LEFT */
    enum part part;        /* the part of C to write */
    cublas_handle handle;  /* set for a triangle, which is copied with this handle's cuBLAS routines */
};

/* Reasons why a product has no line in the journal; journal.py has a text for each, in this order. */
enum uncounted { CROWDED, UNKNOWN, WITHOUT_DRIVER, UNCOUNTED };

enum { LINES = 16384 }; /* a power of two */
enum { SAMPLES = 5 };   /* times kept for cuBLAS and for the kernel */
enum way { BY_CUBLAS, BY_KERNEL, WAYS };

/* A line of the journal: the decision, counts and times of all calls with equal routine, types, shape, leading
   dimensions and strides. journal.py reads it in another process. */
struct line {
    _Atomic uint32_t state; /* 0: free, 1: being written, 2: written */
    int32_t routine, type, transa, transb, device, is_gram;
    _Atomic int32_t decision; /* an enum reason; NOT_LEFT: launch the kernel; -1: undecided */
    int64_t m, n, k, lda, ldb, ldc, batches, stride_a, stride_b, stride_c;
    int64_t merged_m, merged_n; /* of the one product that the batch makes up; else m and n */
    double expected_us, cublas_expected_us; /* 0: not known */
    _Atomic uint64_t calls, taken, left[REASONS];
    _Atomic uint64_t captured;             /* calls captured into CUDA graphs; how often these run is not known */
    _Atomic uint64_t first_ns;             /* GPU time of the first product of cuBLAS, or else of the kernel */
    _Atomic uint64_t timed, gpu_ns;        /* number of later timed products, and the sum of their GPU times */
    _Atomic uint32_t sampled[WAYS];        /* number of valid elements in sample_ns */
    uint32_t sample_ns[WAYS][SAMPLES];     /* time between the events before and after the product on its stream */
    _Atomic uint64_t compared;             /* number of compared results */
    double worst; /* largest difference from the result of cuBLAS, divided by the error bound */
};

struct journal {
    char magic[8];
    uint32_t line_bytes, lines;
    int64_t process;
    char program[216];
    _Atomic uint64_t uncounted[UNCOUNTED]; /* products without a line */
    struct line at[LINES];
};

/* settings.c: the stand-in's settings, read from environment variables. */
struct settings {
    const char *pack, *journal; /* paths; NULL: none */
    bool has_times;
    int compared; /* number of products of each line whose results are compared */
};
extern struct settings settings;
/* Read the settings once: in a constructor, before the program can change its environment, or at an earlier product. */
void read_settings_once(void);

/* Write a formatted line to standard error. */
void tell(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* asked.c */

int element_bytes(int type);
/* Return the tsm2_type for A, B and C of these cudaDataType_t and this compute type; -1 if no kernel supports them. */
int type_of(int a, int b, int c, int compute);
/* Return the product with `unfit` set if an extent, operation, leading dimension or number of products is invalid. */
struct asked checked(struct asked asked);
/* Return whether `factor`, the product's alpha or beta, is 0. */
bool is_zero(const struct asked *asked, const void *factor);
/* Return a pointer to alpha or beta in the type that the pack expects. For HERK it is converted from real to complex
   and stored in `parts`. */
const void *pack_factor(const struct asked *asked, const void *factor, void *parts);
/* Return whether the address range of all C overlaps that of all A or B. */
bool overlaps(const struct asked *asked);

/* real_cublas.c: the real cuBLAS and cuBLASLt, which the program has loaded. */

/* A kind of library: cuBLAS or cuBLASLt. */
struct kind {
    const char *plain, *hashed; /* prefixes of the library's file name; Python wheels may add a hash */
    const char *function;       /* name of a function that only this kind of library defines */
    _Atomic(void *) first;      /* the library used for unknown handles and callers */
};
extern struct kind cublas_kind, lt_kind;
/* Number of dlclose calls. After such a call the code at an address may belong to another object. */
extern _Atomic uint64_t closings;
/* Return whether the code at this address is in a library of this kind. */
bool is_code_of(const struct kind *kind, const void *address);
/* Return the function of this name in the library that the code at this address calls; NULL if there is none. */
void *function_for_code(struct kind *kind, const void *address, const char *name);

/* Return the function of this name in the cuBLAS that created the handle; NULL if there is none. `place` caches it. */
void *cublas_function(const char *name, cublas_handle handle, _Atomic(void *) *place);
/* Call the C library's dlsym. */
void *next_dlsym(void *library, const char *name);

/* journal.c */

/* Find or add the journal's line for calls like this one on this device. Return NULL if the hash table's probed places
   are taken, or there is no journal. */
struct line *line_of(const struct asked *asked, int device);
/* Count a product that has no line, for this reason. */
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
    X(stream_id, "cuStreamGetId", (cu_stream stream, unsigned long long *id))                                        \
    X(await_stream, "cuStreamSynchronize", (cu_stream stream))                                                       \
    X(await_context, "cuCtxSynchronize", (void))                                                                     \
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
/* Return the driver's functions; NULL if the process has no driver, or one that lacks a function. */
const struct driver_functions *driver(void);
/* Allow this thread to make calls that would otherwise invalidate a capture on another stream: allocate memory, load
   kernels, wait, query events. Return the previous capture mode, for restore_captures. */
int relax_captures(void);
void restore_captures(int mode);
/* Return whether the stream is being captured into a CUDA graph. Return true also if the driver returns an error. */
bool is_capturing(cu_stream stream);

/* streams.c: a lane has the pack's handle for one context and stream. If there are too many streams, some share a lane. */

enum { LEGACY_STREAM = 1 }; /* the handle with which a program may name the stream NULL */
struct lane {
    unsigned long long context;
    cu_stream stream;
    const void *thread; /* identifies the thread if the stream is the per-thread default stream; else NULL */
    tsm2_handle handle; /* NULL: the pack cannot create one for this context */
    pthread_mutex_t lock;
    cu_stream aside;    /* result of aside_of; NULL: not yet created */
    cu_pointer scratch; /* for products that write a triangle; 0: not yet allocated */
    unsigned long long scratch_stream_id; /* id of the stream that last used the scratch memory */
    int device;
};
/* Return the lane of the stream in the current context. On failure return NULL and set *reason. */
struct lane *lane_of(cu_stream stream, enum reason *reason);
/* Return the line's decision. If it is undecided, compare the predicted times of kernel and cuBLAS, and store it. */
enum reason decided(struct lane *lane, const struct asked *asked, struct line *line);
/* Return a stream in which the program has no work, one for each context; NULL if it cannot be created. */
cu_stream aside_of(struct lane *lane);
/* Launch the product's kernel on the stream. Return NOT_LEFT, or the reason why it was not launched. */
enum reason start_kernel(struct lane *lane, cu_stream stream, const struct asked *asked);

/* triangle.c */

enum { MOST_OF_TRIANGLE = 256 }; /* most columns of C for which the scratch memory has room */
/* Compute a triangle of C; `start` launches the kernel for all of C. The caller has locked the lane, whose stream this
   must be. Return NOT_LEFT, or the reason why the triangle was not computed. */
enum reason start_triangle(struct lane *lane, cu_stream stream, const struct asked *asked,
                           enum reason (*start)(struct lane *, cu_stream, const struct asked *));

/* dispatch.c */

/* The state of one intercepted call, from begin_visit to end_visit. */
struct visit {
    struct line *line;
    cu_stream stream;
    struct waiting *waiting; /* events that time the product; NULL: it is not timed */
    struct comparison *comparison; /* NULL: the result is not compared */
    bool is_first, is_taken; /* first call of the line that the kernel, or cuBLAS, computes; computed by the kernel */
};
/* Launch the product's kernel and return true, or return false if the caller must call cuBLAS. In both cases the caller
   must then call end_visit. */
bool begin_visit(struct visit *visit, cublas_handle handle, const struct asked *asked);
/* begin_visit for a cuBLASLt product, which has a stream and no cuBLAS handle. */
bool begin_visit_on(struct visit *visit, cu_stream stream, const struct asked *asked);
/* Finish timing and comparison of the call. Return `status`, the result of cuBLAS. */
int end_visit(struct visit *visit, int status);
extern _Thread_local int is_inside; /* depth of intercepted calls: cuBLAS's own inner calls are not the program's */

/* times.c */

/* Record an event before the product on the visit's stream, unless too many timed products are pending. */
void begin_time(struct visit *visit, struct lane *lane);
/* Record the events after the product. The time is read later. */
void end_time(struct visit *visit);

/* verify.c */

/* Copy A, B and C to the host, run the kernel, copy its result to the host, and restore C. Return NULL if memory is
   short or the kernel was not launched. Otherwise the caller must call cuBLAS's routine and then end_comparison. */
struct comparison *begin_comparison(struct lane *lane, cu_stream stream, const struct asked *asked);
/* Compare the kernel's result with C, which cuBLAS has computed, and free the comparison. If the difference exceeds the
   error bound, set the line's decision to OFF. If `line` is NULL, because cuBLAS failed, compare nothing. */
void end_comparison(struct comparison *comparison, struct line *line);

#endif
