/* Products of tall and skinny matrices on a GPU, by the kernels that tsm2-tune found fastest. The library contains these
   kernels as binaries. It needs only the CUDA driver, libcuda.so.1, which it opens at run time.

       C = alpha op(A) op(B) + beta C,    C is m x n, op(A) m x k, op(B) k x n

   as in BLAS and cuBLAS. All matrices are column-major in device memory. op(X) is X, its transpose or its conjugate
   transpose.

       #include "libtsm2.h"                        // named as the library

       tsm2_handle handle;
       tsm2_status status = tsm2_create(&handle);  // for the device of the current CUDA context
       if (status != TSM2_SUCCESS)
           puts(tsm2_last_error(NULL));
       status = tsm2_gemm_f64(handle, TSM2_T, TSM2_N, m, n, k, &alpha, A, lda, B, ldb, &beta, C, ldc);
       if (status == TSM2_NOT_SUPPORTED)           // the library has no kernel for it
           cublasDgemm(...);
       else if (status != TSM2_SUCCESS)
           puts(tsm2_last_error(handle));
       tsm2_destroy(handle);

   Threads: one thread at a time may use a handle. Several threads may use several handles at the same time. Apart from
   its handles the library has one message a thread, tsm2_last_error(NULL).

   Asynchrony: a product is only started, on the handle's stream.

   Ownership: the caller owns all matrices, and the workspace of tsm2_set_workspace, and keeps them until the kernels
   that use them have ended. Texts that functions return belong to the library.

   Errors: each function returns a tsm2_status. Unless it is TSM2_SUCCESS, no kernel was started. */

#ifndef TSM2_H
#define TSM2_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TSM2_INTERFACE 3 /* version of this header; a larger one only adds functions */

typedef struct tsm2_state *tsm2_handle;
typedef void *tsm2_stream; /* a cudaStream_t or CUstream */

typedef enum {
    TSM2_SUCCESS = 0,
    TSM2_INVALID_VALUE = 1,       /* tsm2_last_error names the argument and its position */
    TSM2_NOT_SUPPORTED = 2,       /* the library has no kernel for this product or this GPU */
    TSM2_NO_DRIVER = 3,           /* libcuda.so.1 is missing or too old, or finds no device */
    TSM2_NO_CONTEXT = 4,          /* no CUDA context is current: cudaFree(0) creates one */
    TSM2_DRIVER_ERROR = 5,        /* tsm2_last_error names the driver's function and error */
    TSM2_OUT_OF_MEMORY = 6,       /* on the host, or on the GPU for a workspace */
    TSM2_WORKSPACE_TOO_SMALL = 7, /* the caller's: tsm2_workspace_size returns what is needed */
    TSM2_WRONG_DIGEST = 8         /* a kernel's binary is not the exported one: the file is damaged */
} tsm2_status;

typedef enum { TSM2_N = 0, TSM2_T = 1, TSM2_C = 2 } tsm2_operation; /* the values are cuBLAS's */

/* Element types. A complex number is its real and its imaginary part, aligned to its own size. */
typedef enum { TSM2_F32 = 0, TSM2_F64 = 1, TSM2_C64 = 2, TSM2_C128 = 3, TSM2_BF16 = 4, TSM2_F16 = 5 } tsm2_type;

/* Return the meaning of a status in words. */
const char *tsm2_status_text(tsm2_status status);

/* Return the TSM2_INTERFACE of the library. */
int tsm2_interface(void);

/* Return where the kernels were tuned: program version, devices, drivers, toolkits and days, in lines. */
const char *tsm2_about(void);

/* Create a handle for the current context and its device. Its calls work in this context, whichever is current then.
   Kernels are loaded at their first use. On failure *handle is NULL and tsm2_last_error(NULL) has the reason. The caller
   destroys the handle. */
tsm2_status tsm2_create(tsm2_handle *handle);

/* Create another handle for the same context, which must be current. Both share loaded kernels, so a program can have a
   handle for each stream and load each kernel once. Either may be destroyed first. */
tsm2_status tsm2_create_beside(tsm2_handle other, tsm2_handle *handle);

/* Wait for the context's work and free the handle with its workspace and, after the last handle that shares them, its
   kernels. NULL is allowed. */
tsm2_status tsm2_destroy(tsm2_handle handle);

/* Return the error of the last call with this handle, "" if there was none. The text is valid until the next call with
   the handle. For NULL: why this thread's last tsm2_create or tsm2_create_beside failed. */
const char *tsm2_last_error(tsm2_handle handle);

/* Set and get the stream of later products. A new handle has NULL, the legacy default stream. */
tsm2_status tsm2_set_stream(tsm2_handle handle, tsm2_stream stream);
tsm2_status tsm2_get_stream(tsm2_handle handle, tsm2_stream *stream);

/* Set the device memory for partial sums of kernels that split k. `workspace` is aligned to 16 bytes; `bytes` is at least
   256. The call zeroes a part of it and waits for that. Products that share a workspace must run one after another, on
   one stream or ordered by events, also those of other handles and of CUDA graphs.

   NULL, the initial value: the handle allocates a workspace of its own when a product needs one, and keeps it until it is
   destroyed. Growing it waits for the stream; using it on another stream waits for all work in the context, so use a
   handle for each stream. A CUDA graph cannot use it: to capture a product that needs a workspace, set one, and keep it
   as long as the graph. */
tsm2_status tsm2_set_workspace(tsm2_handle handle, void *workspace, size_t bytes);

/* Load all kernels for this GPU now. A product can be captured into a CUDA graph only if its kernel is loaded. */
tsm2_status tsm2_load(tsm2_handle handle);

/* Start C = alpha op(A) op(B) + beta C. alpha and beta are in host memory; for bf16 and f16 they are float. A, B and C are
   aligned to an element, and C overlaps neither A nor B. lda, ldb and ldc are elements from one column to the next.

   Extents of 0 are as in BLAS: without elements of C nothing is done; with k = 0 C becomes beta C. So it does with
   alpha = 0, and A and B are not read. Both are supported for beta = 0 and beta = 1. With beta = 0 C is not read.

   The kernel is chosen among those for these operations, this GPU's own before other GPUs': for a tuned shape the
   fastest one there, for another shape the one with the least predicted time, with a suitable launch. If A and B are the
   same matrix and op(B) is op(A) transposed, it may be a kernel that computes half of the symmetric or Hermitian result.
   If there is no kernel for these operations, one for the transposed product may run. TSM2_NOT_SUPPORTED: there is none
   either, or it has no binary for this GPU. */
tsm2_status tsm2_gemm_f32(tsm2_handle handle, tsm2_operation transa, tsm2_operation transb, int64_t m, int64_t n,
                          int64_t k, const float *alpha, const float *A, int64_t lda, const float *B, int64_t ldb,
                          const float *beta, float *C, int64_t ldc);
tsm2_status tsm2_gemm_f64(tsm2_handle handle, tsm2_operation transa, tsm2_operation transb, int64_t m, int64_t n,
                          int64_t k, const double *alpha, const double *A, int64_t lda, const double *B, int64_t ldb,
                          const double *beta, double *C, int64_t ldc);
/* Matrices and factors of cuComplex, float _Complex, std::complex<float> or the like; c128 in double. */
tsm2_status tsm2_gemm_c64(tsm2_handle handle, tsm2_operation transa, tsm2_operation transb, int64_t m, int64_t n,
                          int64_t k, const void *alpha, const void *A, int64_t lda, const void *B, int64_t ldb,
                          const void *beta, void *C, int64_t ldc);
tsm2_status tsm2_gemm_c128(tsm2_handle handle, tsm2_operation transa, tsm2_operation transb, int64_t m, int64_t n,
                           int64_t k, const void *alpha, const void *A, int64_t lda, const void *B, int64_t ldb,
                           const void *beta, void *C, int64_t ldc);
/* Products are summed in float and rounded once. */
tsm2_status tsm2_gemm_bf16(tsm2_handle handle, tsm2_operation transa, tsm2_operation transb, int64_t m, int64_t n,
                           int64_t k, const float *alpha, const void *A, int64_t lda, const void *B, int64_t ldb,
                           const float *beta, void *C, int64_t ldc);
tsm2_status tsm2_gemm_f16(tsm2_handle handle, tsm2_operation transa, tsm2_operation transb, int64_t m, int64_t n,
                          int64_t k, const float *alpha, const void *A, int64_t lda, const void *B, int64_t ldb,
                          const float *beta, void *C, int64_t ldc);

/* Start a batch: `batch_count` products of the same extents, operations, leading dimensions and factors, with the
   arguments of cublasSgemmStridedBatched. Matrix i of A begins at A + i * stride_a, in elements, and so on. A stride of A
   or B may be 0, so that all products have one matrix. No stride is negative. Matrices of C must not overlap: each
   begins behind the last element of the one before, or the columns of all of them lie side by side in the columns of one
   matrix (stride_c is at least m, and ldc at least (batch_count - 1) * stride_c + m). A batch_count of 0 does nothing; for
   1 the strides do not count.

   If all products have one B and the rows of A and of C follow one another, or all have one A and the columns of B and
   of C do, the batch is one product, and gets the kernel of that. Other batches are computed by kernels that were tuned
   for batches (--shapes 500000*8x8x8). TSM2_NOT_SUPPORTED: no kernel of this library computes the batch; call
   cublasSgemmStridedBatched, which has the same arguments. A kernel that splits k has a workspace for each product. */
tsm2_status tsm2_gemm_f32_strided_batched(tsm2_handle handle, tsm2_operation transa, tsm2_operation transb, int64_t m,
                                          int64_t n, int64_t k, const float *alpha, const float *A, int64_t lda,
                                          int64_t stride_a, const float *B, int64_t ldb, int64_t stride_b,
                                          const float *beta, float *C, int64_t ldc, int64_t stride_c,
                                          int64_t batch_count);
tsm2_status tsm2_gemm_f64_strided_batched(tsm2_handle handle, tsm2_operation transa, tsm2_operation transb, int64_t m,
                                          int64_t n, int64_t k, const double *alpha, const double *A, int64_t lda,
                                          int64_t stride_a, const double *B, int64_t ldb, int64_t stride_b,
                                          const double *beta, double *C, int64_t ldc, int64_t stride_c,
                                          int64_t batch_count);
tsm2_status tsm2_gemm_c64_strided_batched(tsm2_handle handle, tsm2_operation transa, tsm2_operation transb, int64_t m,
                                          int64_t n, int64_t k, const void *alpha, const void *A, int64_t lda,
                                          int64_t stride_a, const void *B, int64_t ldb, int64_t stride_b,
                                          const void *beta, void *C, int64_t ldc, int64_t stride_c,
                                          int64_t batch_count);
tsm2_status tsm2_gemm_c128_strided_batched(tsm2_handle handle, tsm2_operation transa, tsm2_operation transb, int64_t m,
                                           int64_t n, int64_t k, const void *alpha, const void *A, int64_t lda,
                                           int64_t stride_a, const void *B, int64_t ldb, int64_t stride_b,
                                           const void *beta, void *C, int64_t ldc, int64_t stride_c,
                                           int64_t batch_count);
tsm2_status tsm2_gemm_bf16_strided_batched(tsm2_handle handle, tsm2_operation transa, tsm2_operation transb, int64_t m,
                                           int64_t n, int64_t k, const float *alpha, const void *A, int64_t lda,
                                           int64_t stride_a, const void *B, int64_t ldb, int64_t stride_b,
                                           const float *beta, void *C, int64_t ldc, int64_t stride_c,
                                           int64_t batch_count);
tsm2_status tsm2_gemm_f16_strided_batched(tsm2_handle handle, tsm2_operation transa, tsm2_operation transb, int64_t m,
                                          int64_t n, int64_t k, const float *alpha, const void *A, int64_t lda,
                                          int64_t stride_a, const void *B, int64_t ldb, int64_t stride_b,
                                          const float *beta, void *C, int64_t ldc, int64_t stride_c,
                                          int64_t batch_count);

/* Start a batch whose matrices are given by three arrays of batch_count pointers, as in cublasSgemmBatched. The arrays are
   read before the function returns, and only in memory of the host: an array in device memory, where cuBLAS wants it,
   cannot be read without waiting for the GPU. The matrices of each array have to be equally far apart, in ascending order
   or all the same one; then the call is one of tsm2_gemm_f32_strided_batched. TSM2_NOT_SUPPORTED: an array is in device
   memory, its matrices are not equally far apart, or no kernel computes the batch; call cublasSgemmBatched. */
tsm2_status tsm2_gemm_f32_batched(tsm2_handle handle, tsm2_operation transa, tsm2_operation transb, int64_t m,
                                  int64_t n, int64_t k, const float *alpha, const float *const A[], int64_t lda,
                                  const float *const B[], int64_t ldb, const float *beta, float *const C[],
                                  int64_t ldc, int64_t batch_count);
tsm2_status tsm2_gemm_f64_batched(tsm2_handle handle, tsm2_operation transa, tsm2_operation transb, int64_t m,
                                  int64_t n, int64_t k, const double *alpha, const double *const A[], int64_t lda,
                                  const double *const B[], int64_t ldb, const double *beta, double *const C[],
                                  int64_t ldc, int64_t batch_count);
tsm2_status tsm2_gemm_c64_batched(tsm2_handle handle, tsm2_operation transa, tsm2_operation transb, int64_t m,
                                  int64_t n, int64_t k, const void *alpha, const void *const A[], int64_t lda,
                                  const void *const B[], int64_t ldb, const void *beta, void *const C[], int64_t ldc,
                                  int64_t batch_count);
tsm2_status tsm2_gemm_c128_batched(tsm2_handle handle, tsm2_operation transa, tsm2_operation transb, int64_t m,
                                   int64_t n, int64_t k, const void *alpha, const void *const A[], int64_t lda,
                                   const void *const B[], int64_t ldb, const void *beta, void *const C[], int64_t ldc,
                                   int64_t batch_count);
tsm2_status tsm2_gemm_bf16_batched(tsm2_handle handle, tsm2_operation transa, tsm2_operation transb, int64_t m,
                                   int64_t n, int64_t k, const float *alpha, const void *const A[], int64_t lda,
                                   const void *const B[], int64_t ldb, const float *beta, void *const C[], int64_t ldc,
                                   int64_t batch_count);
tsm2_status tsm2_gemm_f16_batched(tsm2_handle handle, tsm2_operation transa, tsm2_operation transb, int64_t m,
                                  int64_t n, int64_t k, const float *alpha, const void *const A[], int64_t lda,
                                  const void *const B[], int64_t ldb, const float *beta, void *const C[], int64_t ldc,
                                  int64_t batch_count);

/* Write to `text` which kernel such a product gets, with its measured or predicted time. The text is cut to `bytes`, its
   terminating 0 included. Only the addresses of A and B matter. Whether the kernel has a binary for this GPU is not
   checked: without one gemm returns TSM2_NOT_SUPPORTED. */
tsm2_status tsm2_choice(tsm2_handle handle, tsm2_type type, tsm2_operation transa, tsm2_operation transb, int64_t m,
                        int64_t n, int64_t k, const void *A, int64_t lda, const void *B, int64_t ldb, int64_t ldc,
                        char *text, size_t bytes);

/* Store the product's time in microseconds by this library and by cuBLAS, measured or predicted; 0 if unknown.
   *is_slower is 1 if cuBLAS is faster, or nearly so if the times are predicted: then leave the product to cuBLAS. */
tsm2_status tsm2_compare(tsm2_handle handle, tsm2_type type, tsm2_operation transa, tsm2_operation transb, int64_t m,
                         int64_t n, int64_t k, const void *A, int64_t lda, const void *B, int64_t ldb, int64_t ldc,
                         double *us, double *cublas_us, int *is_slower);

/* Store the bytes that tsm2_set_workspace needs for such a product; 0 if it needs none. */
tsm2_status tsm2_workspace_size(tsm2_handle handle, tsm2_type type, tsm2_operation transa, tsm2_operation transb,
                                int64_t m, int64_t n, int64_t k, const void *A, int64_t lda, const void *B, int64_t ldb,
                                int64_t ldc, size_t *bytes);

/* The same for a batch with strides. */
tsm2_status tsm2_choice_strided_batched(tsm2_handle handle, tsm2_type type, tsm2_operation transa,
                                        tsm2_operation transb, int64_t m, int64_t n, int64_t k, const void *A,
                                        int64_t lda, int64_t stride_a, const void *B, int64_t ldb, int64_t stride_b,
                                        int64_t ldc, int64_t stride_c, int64_t batch_count, char *text, size_t bytes);
tsm2_status tsm2_compare_strided_batched(tsm2_handle handle, tsm2_type type, tsm2_operation transa,
                                         tsm2_operation transb, int64_t m, int64_t n, int64_t k, const void *A,
                                         int64_t lda, int64_t stride_a, const void *B, int64_t ldb, int64_t stride_b,
                                         int64_t ldc, int64_t stride_c, int64_t batch_count, double *us,
                                         double *cublas_us, int *is_slower);
tsm2_status tsm2_workspace_size_strided_batched(tsm2_handle handle, tsm2_type type, tsm2_operation transa,
                                                tsm2_operation transb, int64_t m, int64_t n, int64_t k, const void *A,
                                                int64_t lda, int64_t stride_a, const void *B, int64_t ldb,
                                                int64_t stride_b, int64_t ldc, int64_t stride_c, int64_t batch_count,
                                                size_t *bytes);

#ifdef __cplusplus
}
#endif

#endif
