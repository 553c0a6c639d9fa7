/* Products of tall and skinny matrices on a GPU, by the kernels that tsm2-tune found fastest. The library holds these as
   binaries; it needs the CUDA driver alone, which it opens at run time (libcuda.so.1).

   C (m x n) = alpha op(A) (m x k) op(B) (k x n) + beta C, as BLAS and cuBLAS have it: all matrices column-major in device
   memory; op(X) is X, its transpose, or its conjugate transpose.

       #include "libtsm2.h"                        // as the library is named

       tsm2_handle handle;
       tsm2_status status = tsm2_create(&handle);  // for the device of the CUDA context that is current
       if (status != TSM2_SUCCESS)
           puts(tsm2_last_error(NULL));
       status = tsm2_gemm_f64(handle, TSM2_T, TSM2_N, m, n, k, &alpha, A, lda, B, ldb, &beta, C, ldc);
       if (status == TSM2_NOT_SUPPORTED)           // no kernel here is for it
           cublasDgemm(...);
       else if (status != TSM2_SUCCESS)
           puts(tsm2_last_error(handle));
       tsm2_destroy(handle);

   The library has no state besides its handles, and what tsm2_last_error says of NULL. A handle is for one thread at a time; several, in several threads, may
   work at the same time. A product is only started, on the handle's stream. */

#ifndef TSM2_H
#define TSM2_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TSM2_INTERFACE 2 /* of this header; a larger number has functions more */

typedef struct tsm2_state *tsm2_handle;
typedef void *tsm2_stream; /* a cudaStream_t or CUstream */

typedef enum {
    TSM2_SUCCESS = 0,
    TSM2_INVALID_VALUE = 1,       /* an argument: tsm2_last_error has its name and number */
    TSM2_NOT_SUPPORTED = 2,       /* no kernel here is for this product or this GPU */
    TSM2_NO_DRIVER = 3,           /* libcuda.so.1 is not there, too old, or finds no device */
    TSM2_NO_CONTEXT = 4,          /* no CUDA context is current: cudaFree(0) makes one */
    TSM2_DRIVER_ERROR = 5,        /* tsm2_last_error has the function and the driver's name of the error */
    TSM2_OUT_OF_MEMORY = 6,       /* of the host, or of the GPU for a workspace */
    TSM2_WORKSPACE_TOO_SMALL = 7, /* that of tsm2_set_workspace: tsm2_workspace_size has the size */
    TSM2_WRONG_DIGEST = 8         /* a kernel in this library is not the one that was put into it */
} tsm2_status;

typedef enum { TSM2_N = 0, TSM2_T = 1, TSM2_C = 2 } tsm2_operation; /* the values are cuBLAS's */

/* Of elements. Complex numbers are two real ones, one after the other, aligned to both together. */
typedef enum { TSM2_F32 = 0, TSM2_F64 = 1, TSM2_C64 = 2, TSM2_C128 = 3, TSM2_BF16 = 4, TSM2_F16 = 5 } tsm2_type;

/* What a status means, in words. */
const char *tsm2_status_text(tsm2_status status);

/* The TSM2_INTERFACE that the library was built with. */
int tsm2_interface(void);

/* Where the kernels were tuned: program, devices, drivers, toolkits, days. A line for each. */
const char *tsm2_about(void);

/* A handle for the device of the context that is current. It belongs to this context: its calls work in it, whichever
   is current then. Kernels are loaded when they are first needed. */
tsm2_status tsm2_create(tsm2_handle *handle);

/* Another handle for the same context, which must be current: it has the other one's kernels, whichever of the two loads
   them. So a program has a handle for each of its streams, and each kernel is loaded once. */
tsm2_status tsm2_create_beside(tsm2_handle other, tsm2_handle *handle);

/* Waits for the context's work, and frees what the handle has. NULL is none. */
tsm2_status tsm2_destroy(tsm2_handle handle);

/* What was wrong in the last call with this handle; "" where nothing was. It stays until the next call. Of NULL: why
   this thread's last call of tsm2_create or tsm2_create_beside made no handle. */
const char *tsm2_last_error(tsm2_handle handle);

/* The stream of the products to come; NULL, the legacy default stream, at first. */
tsm2_status tsm2_set_stream(tsm2_handle handle, tsm2_stream stream);
tsm2_status tsm2_get_stream(tsm2_handle handle, tsm2_stream *stream);

/* The device memory in which kernels that split k leave their sums, aligned to 16 bytes. Part of it is zeroed, which is
   waited for. Products that share it must follow one another, on one stream or ordered by events: also those of other
   handles, and of CUDA graphs.

   NULL, as at first: the handle allocates its own as products need it, and keeps it. That grows, for which the stream
   is waited for, and goes with the handle from one stream to another, for which all work is waited for: with a handle
   for each stream nothing is. A CUDA graph cannot have it: capturing a product that needs a workspace takes one of the
   caller's, which stays with the graph. */
tsm2_status tsm2_set_workspace(tsm2_handle handle, void *workspace, size_t bytes);

/* Load all kernels that were tuned for this GPU, as a capture into a CUDA graph needs them. */
tsm2_status tsm2_load(tsm2_handle handle);

/* The product. alpha and beta are in host memory; for bf16 and f16 they are float. A, B and C are aligned to an element,
   and C shares no memory with A and B.

   Extents of 0 are as in BLAS: without elements of C nothing is done; with k = 0 C becomes beta C, and with
   alpha = 0, where what A and B hold is not read; both are supported for beta = 0 and beta = 1. At beta = 0 what C
   holds is not read.
   lda, ldb and ldc are elements from one column to the next.

   Of the kernels for these operations, the GPU's own before other GPUs', the one that was tuned for the shape runs;
   for a shape that was not tuned, the one that is expected to take least, started as suits the shape. Where A is B and op(B) is op(A) transposed, that may be one
   which computes half of the symmetric or Hermitian result. Where none is for these operations, one for the transposed
   product may run. */
tsm2_status tsm2_gemm_f32(tsm2_handle handle, tsm2_operation transa, tsm2_operation transb, int64_t m, int64_t n,
                          int64_t k, const float *alpha, const float *A, int64_t lda, const float *B, int64_t ldb,
                          const float *beta, float *C, int64_t ldc);
tsm2_status tsm2_gemm_f64(tsm2_handle handle, tsm2_operation transa, tsm2_operation transb, int64_t m, int64_t n,
                          int64_t k, const double *alpha, const double *A, int64_t lda, const double *B, int64_t ldb,
                          const double *beta, double *C, int64_t ldc);
/* For cuComplex, float _Complex, std::complex<float> and their like. */
tsm2_status tsm2_gemm_c64(tsm2_handle handle, tsm2_operation transa, tsm2_operation transb, int64_t m, int64_t n,
                          int64_t k, const void *alpha, const void *A, int64_t lda, const void *B, int64_t ldb,
                          const void *beta, void *C, int64_t ldc);
tsm2_status tsm2_gemm_c128(tsm2_handle handle, tsm2_operation transa, tsm2_operation transb, int64_t m, int64_t n,
                           int64_t k, const void *alpha, const void *A, int64_t lda, const void *B, int64_t ldb,
                           const void *beta, void *C, int64_t ldc);
/* Sums of products are float, and rounded once. */
tsm2_status tsm2_gemm_bf16(tsm2_handle handle, tsm2_operation transa, tsm2_operation transb, int64_t m, int64_t n,
                           int64_t k, const float *alpha, const void *A, int64_t lda, const void *B, int64_t ldb,
                           const float *beta, void *C, int64_t ldc);
tsm2_status tsm2_gemm_f16(tsm2_handle handle, tsm2_operation transa, tsm2_operation transb, int64_t m, int64_t n,
                          int64_t k, const float *alpha, const void *A, int64_t lda, const void *B, int64_t ldb,
                          const float *beta, void *C, int64_t ldc);

/* Which kernel such a product gets, in words, with the time that was measured of it where it was tuned at this very
   shape: as much as fits into `bytes`, the end included. Of A and B only the addresses matter.
   Where that kernel has no binary for the device, which is not asked about here, gemm answers TSM2_NOT_SUPPORTED. */
tsm2_status tsm2_choice(tsm2_handle handle, tsm2_type type, tsm2_operation transa, tsm2_operation transb, int64_t m,
                        int64_t n, int64_t k, const void *A, int64_t lda, const void *B, int64_t ldb, int64_t ldc,
                        char *text, size_t bytes);

/* What such a product is expected to take here and by cuBLAS, in microseconds, 0 where that is not known; and whether cuBLAS
   is faster, or as good as that where times are predicted, so that the product had better be left to it. */
tsm2_status tsm2_compare(tsm2_handle handle, tsm2_type type, tsm2_operation transa, tsm2_operation transb, int64_t m,
                         int64_t n, int64_t k, const void *A, int64_t lda, const void *B, int64_t ldb, int64_t ldc,
                         double *us, double *cublas_us, int *is_slower);

/* The bytes that tsm2_set_workspace must have for such a product: 0 where it needs none. */
tsm2_status tsm2_workspace_size(tsm2_handle handle, tsm2_type type, tsm2_operation transa, tsm2_operation transb,
                                int64_t m, int64_t n, int64_t k, const void *A, int64_t lda, const void *B, int64_t ldb,
                                int64_t ldc, size_t *bytes);

#ifdef __cplusplus
}
#endif

#endif
