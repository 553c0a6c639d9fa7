/* A cuBLAS that writes down its calls in the driver's log, and multiplies where it is told to: its matrices are in the
   host's memory. It calls a routine of its own by its public name, as the real one may. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#ifndef PREFIX
#define PREFIX "" /* of the lines of this library, among those of others */
#endif

void fake_note(const char *text);
void *fake_take(size_t bytes);
void fake_give_back(void *memory);
void fake_pass(int ms);
void fake_work(const void *stream, int ms);

struct handle {
    void *stream;
    int pointer_mode, math_mode, sm_count_target;
};

int cublasCreate_v2(void **handle) { return (*handle = fake_take(sizeof(struct handle))) == NULL; }
int cublasDestroy_v2(void *handle) { return fake_give_back(handle), 0; }
int cublasSetStream_v2(struct handle *handle, void *stream) { return handle->stream = stream, 0; }
int cublasGetStream_v2(struct handle *handle, void **stream) { return *stream = handle->stream, 0; }
int cublasSetPointerMode_v2(struct handle *handle, int mode) { return handle->pointer_mode = mode, 0; }
int cublasGetPointerMode_v2(struct handle *handle, int *mode) { return *mode = handle->pointer_mode, 0; }
int cublasSetMathMode(struct handle *handle, int mode) { return handle->math_mode = mode, 0; }
int cublasGetMathMode(struct handle *handle, int *mode) { return *mode = handle->math_mode, 0; }

int cublasSetSmCountTarget(struct handle *handle, int count) { return handle->sm_count_target = count, 0; }
int cublasGetSmCountTarget(struct handle *handle, int *count) { return *count = handle->sm_count_target, 0; }

static int noted(const char *name, const struct handle *handle, const long long *numbers, int count)
{
    static int has_started;
    char line[1024];
    int at = snprintf(line, sizeof line, PREFIX "%s stream %llx", name, (unsigned long long)(uintptr_t)handle->stream);
    for (int i = 0; i < count; ++i)
        at += snprintf(line + at, sizeof line - (size_t)at, " %lld", numbers[i]);
    fake_note(line);
    if (getenv("FAKE_CUBLAS_STARTS_UP_MS") != NULL && !has_started)
        fake_pass(atoi(getenv("FAKE_CUBLAS_STARTS_UP_MS")));
    has_started = 1;
    if (getenv("FAKE_CUBLAS_MS") != NULL)
        fake_work(handle->stream, atoi(getenv("FAKE_CUBLAS_MS")));
    return getenv("FAKE_CUBLAS_REFUSES") == NULL ? 0 : 15; /* CUBLAS_STATUS_NOT_SUPPORTED */
}
#define NOTE(name, ...)                                                                                              \
    const long long numbers[] = {__VA_ARGS__};                                                                       \
    const int status = noted(name, handle, numbers, (int)(sizeof numbers / sizeof *numbers))
#define AT(pointer) (long long)(uintptr_t)(pointer)

/* C = alpha op(A) op(B) + beta C, of doubles in the host's memory. */
static void multiply(int transa, int transb, int64_t m, int64_t n, int64_t k, double alpha, const double *A, int64_t lda,
                     const double *B, int64_t ldb, double beta, double *C, int64_t ldc)
{
    for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j) {
            double sum = 0;
            for (int64_t l = 0; l < k; ++l)
                sum += (transa ? A[l + i * lda] : A[i + l * lda]) * (transb ? B[j + l * ldb] : B[l + j * ldb]);
            C[i + j * ldc] = alpha * sum + (beta == 0 ? 0 : beta * C[i + j * ldc]);
        }
}

#define GEMM(name, integer)                                                                                          \
    int name(struct handle *handle, int transa, int transb, integer m, integer n, integer k, const void *alpha,      \
             const void *A, integer lda, const void *B, integer ldb, const void *beta, void *C, integer ldc)         \
    {                                                                                                                \
        NOTE(#name, transa, transb, m, n, k, AT(alpha), AT(A), lda, AT(B), ldb, AT(beta), AT(C), ldc);               \
        return status;                                                                                               \
    }
#define GEMV(name, integer)                                                                                          \
    int name(struct handle *handle, int trans, integer m, integer n, const void *alpha, const void *A, integer lda,  \
             const void *x, integer step_x, const void *beta, void *y, integer step_y)                               \
    {                                                                                                                \
        NOTE(#name, trans, m, n, AT(alpha), AT(A), lda, AT(x), step_x, AT(beta), AT(y), step_y);                     \
        return status;                                                                                               \
    }
#define BATCHED(name, integer)                                                                                       \
    int name(struct handle *handle, int transa, int transb, integer m, integer n, integer k, const void *alpha,      \
             const void *A, integer lda, long long stride_a, const void *B, integer ldb, long long stride_b,         \
             const void *beta, void *C, integer ldc, long long stride_c, integer count)                              \
    {                                                                                                                \
        NOTE(#name, transa, transb, m, n, k, AT(alpha), AT(A), lda, stride_a, AT(B), ldb, stride_b, AT(beta), AT(C), \
             ldc, stride_c, count);                                                                                  \
        return status;                                                                                               \
    }

#define BY_POINTERS(name, integer)                                                                                   \
    int name(struct handle *handle, int transa, int transb, integer m, integer n, integer k, const void *alpha,      \
             const void *const *A, integer lda, const void *const *B, integer ldb, const void *beta, void *const *C, \
             integer ldc, integer count)                                                                             \
    {                                                                                                                \
        NOTE(#name, transa, transb, m, n, k, AT(alpha), AT(A), lda, AT(B), ldb, AT(beta), AT(C), ldc, count);        \
        return status;                                                                                               \
    }

GEMM(cublasCgemm_v2, int)
GEMM(cublasZgemm_v2, int)
GEMM(cublasSgemm_v2_64, int64_t)
GEMM(cublasDgemm_v2_64, int64_t)
GEMM(cublasCgemm_v2_64, int64_t)
GEMM(cublasZgemm_v2_64, int64_t)
GEMV(cublasSgemv_v2, int)
GEMV(cublasDgemv_v2, int)
GEMV(cublasCgemv_v2, int)
GEMV(cublasZgemv_v2, int)
GEMV(cublasSgemv_v2_64, int64_t)
GEMV(cublasDgemv_v2_64, int64_t)
GEMV(cublasCgemv_v2_64, int64_t)
GEMV(cublasZgemv_v2_64, int64_t)
BY_POINTERS(cublasSgemmBatched, int)
BY_POINTERS(cublasDgemmBatched, int)
BY_POINTERS(cublasCgemmBatched, int)
BY_POINTERS(cublasZgemmBatched, int)
BY_POINTERS(cublasSgemmBatched_64, int64_t)
BY_POINTERS(cublasDgemmBatched_64, int64_t)
BY_POINTERS(cublasCgemmBatched_64, int64_t)
BY_POINTERS(cublasZgemmBatched_64, int64_t)
BATCHED(cublasSgemmStridedBatched, int)
BATCHED(cublasCgemmStridedBatched, int)
BATCHED(cublasZgemmStridedBatched, int)
BATCHED(cublasSgemmStridedBatched_64, int64_t)
BATCHED(cublasDgemmStridedBatched_64, int64_t)
BATCHED(cublasCgemmStridedBatched_64, int64_t)
BATCHED(cublasZgemmStridedBatched_64, int64_t)

int cublasDgemm_v2(struct handle *handle, int transa, int transb, int m, int n, int k, const double *alpha,
                   const double *A, int lda, const double *B, int ldb, const double *beta, double *C, int ldc)
{
    NOTE("cublasDgemm_v2", transa, transb, m, n, k, AT(alpha), AT(A), lda, AT(B), ldb, AT(beta), AT(C), ldc);
    if (getenv("FAKE_CUBLAS_MULTIPLIES") != NULL)
        multiply(transa, transb, m, n, k, *alpha, A, lda, B, ldb, *beta, C, ldc);
    return status;
}

int cublasDgemmStridedBatched(struct handle *handle, int transa, int transb, int m, int n, int k, const double *alpha,
                              const double *A, int lda, long long stride_a, const double *B, int ldb, long long stride_b,
                              const double *beta, double *C, int ldc, long long stride_c, int count)
{
    NOTE("cublasDgemmStridedBatched", transa, transb, m, n, k, AT(alpha), AT(A), lda, stride_a, AT(B), ldb, stride_b,
         AT(beta), AT(C), ldc, stride_c, count);
    for (int i = 0; i < count && getenv("FAKE_CUBLAS_MULTIPLIES") != NULL; ++i)
        multiply(transa, transb, m, n, k, *alpha, A + i * stride_a, lda, B + i * stride_b, ldb, *beta, C + i * stride_c,
                 ldc);
    return status;
}

#define EX(name, integer)                                                                                            \
    int name(struct handle *handle, int transa, int transb, integer m, integer n, integer k, const void *alpha,      \
             const void *A, int type_a, integer lda, const void *B, int type_b, integer ldb, const void *beta,       \
             void *C, int type_c, integer ldc, int compute, int algorithm)                                           \
    {                                                                                                                \
        NOTE(#name, transa, transb, m, n, k, AT(alpha), AT(A), type_a, lda, AT(B), type_b, ldb, AT(beta), AT(C),     \
             type_c, ldc, compute, algorithm);                                                                       \
        return status;                                                                                               \
    }
EX(cublasGemmEx, int)
EX(cublasGemmEx_64, int64_t)

#define BATCHED_EX(name, integer)                                                                                    \
    int name(struct handle *handle, int transa, int transb, integer m, integer n, integer k, const void *alpha,      \
             const void *A, int type_a, integer lda, long long stride_a, const void *B, int type_b, integer ldb,     \
             long long stride_b, const void *beta, void *C, int type_c, integer ldc, long long stride_c,             \
             integer count, int compute, int algorithm)                                                              \
    {                                                                                                                \
        NOTE(#name, transa, transb, m, n, k, AT(alpha), AT(A), type_a, lda, stride_a, AT(B), type_b, ldb, stride_b,  \
             AT(beta), AT(C), type_c, ldc, stride_c, count, compute, algorithm);                                     \
        return status;                                                                                               \
    }
BATCHED_EX(cublasGemmStridedBatchedEx, int)
BATCHED_EX(cublasGemmStridedBatchedEx_64, int64_t)

#define BY_POINTERS_EX(name, integer)                                                                                \
    int name(struct handle *handle, int transa, int transb, integer m, integer n, integer k, const void *alpha,      \
             const void *const *A, int type_a, integer lda, const void *const *B, int type_b, integer ldb,           \
             const void *beta, void *const *C, int type_c, integer ldc, integer count, int compute, int algorithm)   \
    {                                                                                                                \
        NOTE(#name, transa, transb, m, n, k, AT(alpha), AT(A), type_a, lda, AT(B), type_b, ldb, AT(beta), AT(C),     \
             type_c, ldc, count, compute, algorithm);                                                                \
        return status;                                                                                               \
    }
BY_POINTERS_EX(cublasGemmBatchedEx, int)
BY_POINTERS_EX(cublasGemmBatchedEx_64, int64_t)

/* By another routine of its own. */
int cublasSgemm_v2(struct handle *handle, int transa, int transb, int m, int n, int k, const void *alpha, const void *A,
                   int lda, const void *B, int ldb, const void *beta, void *C, int ldc)
{
    NOTE("cublasSgemm_v2", transa, transb, m, n, k, AT(alpha), AT(A), lda, AT(B), ldb, AT(beta), AT(C), ldc);
    return status | cublasSgemm_v2_64(handle, transa, transb, m, n, k, alpha, A, lda, B, ldb, beta, C, ldc);
}

/* Triangles of products with the same matrix transposed, and between full and packed ones. */
#define TRIANGLE(name, integer)                                                                                      \
    int name(struct handle *handle, int uplo, int trans, integer n, integer k, const void *alpha, const void *A,     \
             integer lda, const void *beta, void *C, integer ldc)                                                    \
    {                                                                                                                \
        NOTE(#name, uplo, trans, n, k, AT(alpha), AT(A), lda, AT(beta), AT(C), ldc);                                 \
        return status;                                                                                               \
    }
#define TRIANGLES(name) TRIANGLE(name, int) TRIANGLE(name##_64, int64_t)
TRIANGLES(cublasSsyrk_v2)
TRIANGLES(cublasDsyrk_v2)
TRIANGLES(cublasCsyrk_v2)
TRIANGLES(cublasZsyrk_v2)
TRIANGLES(cublasCherk_v2)
TRIANGLES(cublasZherk_v2)

#define PACKING(letter)                                                                                              \
    int cublas##letter##trttp(struct handle *handle, int uplo, int n, const void *full, int ld, void *packed)        \
    {                                                                                                                \
        NOTE("cublas" #letter "trttp", uplo, n, AT(full), ld, AT(packed));                                           \
        return status;                                                                                               \
    }                                                                                                                \
    int cublas##letter##tpttr(struct handle *handle, int uplo, int n, const void *packed, void *full, int ld)        \
    {                                                                                                                \
        NOTE("cublas" #letter "tpttr", uplo, n, AT(packed), AT(full), ld);                                           \
        return getenv("FAKE_CUBLAS_PACKS") == NULL ? status : atoi(getenv("FAKE_CUBLAS_PACKS"));                     \
    }
PACKING(S)
PACKING(D)
PACKING(C)
PACKING(Z)
