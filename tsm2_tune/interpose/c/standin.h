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

/* The routines that are stood in for; journal.py has their names in this order. */
enum routine { GEMM, GEMM_EX, GEMM_BATCHED, GEMM_BATCHED_EX, GEMV, SYRK, HERK, LT_MATMUL, ROUTINES };

/* Why a product was left to cuBLAS; journal.py has the sentences in this order. */
enum reason {
    NOT_LEFT,
    NO_PACK,        /* there is none, or none that can be used */
    NO_KERNEL,      /* for this product and GPU */
    EXPECTED,       /* to be faster, or as fast */
    BATCH,          /* that is no single product */
    PRECISION,      /* the program allows less, or asks for a type that no kernel has */
    DEVICE_FACTORS, /* alpha and beta are in device memory */
    FEWER_SMS,      /* the program wants multiprocessors left free */
    ZERO,           /* alpha or an extent is 0, an argument is wrong, or C overlaps A or B */
    STRIDES,        /* of a vector */
    CAPTURED,       /* into a CUDA graph, where the kernel is not loaded, or there is no room for its workspace */
    NO_MEMORY,      /* for a workspace */
    FAILED,         /* the kernel could not be started */
    OFF,            /* its result was outside of the bound */
    CROWD,          /* more contexts than are kept apart */
    TIMED,          /* to be compared by time */
    COMPARED,       /* to be compared by result, or was: cuBLAS's is what the program got */
    EPILOGUE,       /* what cuBLASLt does to the result besides */
    MORE,           /* is asked of cuBLASLt: another order, C apart from D, an attribute that is not known */
    SLOWER,         /* the kernel was, in this program */
    REASONS
};

/* The whole of C, or a triangle with the diagonal. */
enum part { WHOLE_C, LOWER_C, UPPER_C };

/* A product as the program asks for it, column-major. Those of HERK have real factors, whatever their type. */
struct asked {
    enum routine routine;
    int type; /* a tsm2_type, or -1: none that is known */
    int transa, transb;
    int64_t m, n, k;
    const void *alpha, *A;
    int64_t lda;
    const void *B;
    int64_t ldb;
    const void *beta;
    void *C;
    int64_t ldc;
    int64_t batches;       /* of the call: 1 where it is one product */
    enum reason unfit;     /* why no kernel can be asked, or NOT_LEFT */
    enum part part;        /* of C, which alone is written */
    cublas_handle handle;  /* where that is a triangle: its routines copy one */
};

/* Why a product has no line of the journal; journal.py has the sentences in this order. */
enum uncounted { CROWDED, UNKNOWN, WITHOUT_DRIVER, UNCOUNTED };

enum { LINES = 16384 }; /* a power of two */
enum { SAMPLES = 5 };   /* of each of the two ways to compute a product, by which they are compared */
enum way { BY_CUBLAS, BY_KERNEL, WAYS };

/* What is known of all products that are alike: a line of the journal, which other processes read: journal.py. */
struct line {
    _Atomic uint32_t state; /* 0: free, 1: being written, 2: written */
    int32_t routine, type, transa, transb, device, is_gram;
    _Atomic int32_t decision; /* an enum reason: NOT_LEFT where the kernel is expected to be faster; -1: not yet made */
    int64_t m, n, k, lda, ldb, ldc, batches;
    double expected_us, cublas_expected_us; /* 0: not known */
    _Atomic uint64_t calls, taken, left[REASONS];
    _Atomic uint64_t captured;             /* calls that went into a CUDA graph, which may run at any time */
    _Atomic uint64_t first_ns;             /* GPU time of the first product by cuBLAS, or by the kernel */
    _Atomic uint64_t timed, gpu_ns;        /* other products whose GPU time was taken, and their sum */
    _Atomic uint32_t sampled[WAYS];        /* samples that are there */
    uint32_t sample_ns[WAYS][SAMPLES];     /* from where a stream comes to a product to where that is computed */
    _Atomic uint64_t compared;
    double worst; /* difference from cuBLAS's result, as a share of the bound */
};

struct journal {
    char magic[8];
    uint32_t line_bytes, lines;
    int64_t process;
    char program[216];
    _Atomic uint64_t uncounted[UNCOUNTED]; /* products without a line */
    struct line at[LINES];
};

/* settings.c: what was asked of the stand-in by its environment. */
struct settings {
    const char *pack, *journal; /* paths; NULL: none */
    bool has_times;
    int compared; /* products of each line */
};
extern struct settings settings;
/* Before the program can change its environment; at a product in another library's constructor, before that. */
void read_settings_once(void);

/* One line on standard error. */
void tell(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* product.c */

int element_bytes(int type);
/* The type of matrices, with products summed up as a kernel does; -1 where none does. */
int type_of(int a, int b, int c, int compute);
/* The product, with the reason where a kernel cannot be asked for it. */
struct asked checked(struct asked asked);
/* Whether one of the product's factors is 0. */
bool is_zero(const struct asked *asked, const void *factor);
/* A factor of the product as the pack takes it: `parts` holds it where the program's is real and the pack's is not. */
const void *pack_factor(const struct asked *asked, const void *factor, void *parts);
/* Whether C shares memory with A or B, as far as their spans tell. */
bool overlaps(const struct asked *asked);

/* real_cublas.c: the libraries that the program has loaded. */

/* A kind of library: cuBLAS, cuBLASLt. */
struct kind {
    const char *plain, *hashed; /* beginnings of its file's name: wheels add a hash */
    const char *function;       /* that it alone has */
    _Atomic(void *) first;      /* of this kind that was found: that of handles and callers nothing is known of */
};
extern struct kind cublas_kind, lt_kind;
/* Counts what the program closes by dlclose: code at an address may be another object's since. */
extern _Atomic uint64_t closings;
/* Whether the code at this address is such a library's own. */
bool is_code_of(const struct kind *kind, const void *address);
/* The library's function of this name for a call from the code at this address; NULL where there is none. */
void *function_for_code(struct kind *kind, const void *address, const char *name);

/* Its function of this name, for a call with this handle; NULL where there is none. `place` keeps what was found. */
void *cublas_function(const char *name, cublas_handle handle, _Atomic(void *) *place);
/* As dlsym of the C library: also in the program's place. */
void *next_dlsym(void *library, const char *name);

/* journal.c */

/* The line of such products on this device, new or old; NULL where no room is found in a few places. */
struct line *line_of(const struct asked *asked, int device);
/* One product more has no line. */
void count_without_line(enum uncounted why);

/* driver.c: of the CUDA driver, found in the process. */

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
/* NULL where the process has no driver, or one that is too old. */
const struct driver_functions *driver(void);
/* From now on this thread may do what ends a capture on another stream: allocate, load, wait, ask for events. The mode
   before. */
int relax_captures(void);
void restore_captures(int mode);
/* Whether the stream's work goes into a CUDA graph, or that is not known. */
bool is_capturing(cu_stream stream);

/* streams.c: a lane is a handle of the pack's, for a stream, or for several where there are many. */

struct lane {
    unsigned long long context;
    cu_stream stream;
    const void *thread; /* whose stream it is; NULL: everyone's */
    tsm2_handle handle; /* NULL: the pack has none for this context */
    pthread_mutex_t lock;
    cu_stream aside;    /* aside_of's; NULL: not yet asked for */
    cu_pointer scratch; /* for a product of which a triangle is wanted; 0: not yet allocated */
    int device;
};
/* The lane of the stream in the current context; NULL, and the reason. */
struct lane *lane_of(cu_stream stream, enum reason *reason);
/* The decision of the line, made in the lane; of products that a kernel can be asked for, which others of the line may not
   be: of a batch, say. */
enum reason decided(struct lane *lane, const struct asked *asked, struct line *line);
/* A stream on which nothing of the program's waits, one for each context; NULL: there is none. */
cu_stream aside_of(struct lane *lane);
/* Start the kernel on the stream: NOT_LEFT, or why it was not started. */
enum reason start_kernel(struct lane *lane, cu_stream stream, const struct asked *asked);

/* triangle.c */

enum { MOST_OF_TRIANGLE = 256 }; /* columns of C, for which a lane has scratch memory */
/* Start the kernel, by `start`, for the triangle of C that is asked for. The lane is locked, and its stream is this one. */
enum reason start_triangle(struct lane *lane, cu_stream stream, const struct asked *asked,
                           enum reason (*start)(struct lane *, cu_stream, const struct asked *));

/* dispatch.c */

struct visit {
    struct line *line;
    cu_stream stream;
    struct waiting *waiting; /* for its time; NULL: that is not taken */
    struct comparison *comparison; /* NULL: none */
    bool is_first, is_taken;
};
/* Whether the product was started here: else the caller asks cuBLAS. Either way end_visit follows. */
bool begin_visit(struct visit *visit, cublas_handle handle, const struct asked *asked);
/* The same, of a product that comes with its stream and all its settings. */
bool begin_visit_on(struct visit *visit, cu_stream stream, const struct asked *asked);
int end_visit(struct visit *visit, int status);
extern _Thread_local int is_inside; /* a call of cuBLAS's, which may call its own routines */

/* times.c */

/* Begin to take the GPU time of what follows on the visit's stream, where there is a place for it. */
void begin_time(struct visit *visit, struct lane *lane);
void end_time(struct visit *visit);

/* verify.c */

/* The kernel's result, C as it was before, and what the bound needs; NULL where there is no memory, or the kernel was not
   started. cuBLAS's routine follows, then end_comparison. */
struct comparison *begin_comparison(struct lane *lane, cu_stream stream, const struct asked *asked);
/* Compares with what C holds now. The line's decision becomes OFF where the kernel's is outside of the bound. Without a line
   nothing is compared: cuBLAS refused the product. */
void end_comparison(struct comparison *comparison, struct line *line);

#endif
