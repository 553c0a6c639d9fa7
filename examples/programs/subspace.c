/* The eight largest eigenvalues of a symmetric matrix, by subspace iteration with cuBLAS, in f32.

       cc subspace.c -I$CUDA_HOME/include -L$CUDA_HOME/lib64 -lcublas -lcudart -lm -o subspace_c
       ./subspace_c [ROWS [ITERATIONS]]
*/

#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { VECTORS = 8 };

static void check(int status, const char *what)
{
    if (status == 0)
        return;
    fprintf(stderr, "%s failed with status %d\n", what, status);
    exit(1);
}
#define CHECK(call) check((int)(call), #call)

/* A number between -1 and 1 that belongs to the place. */
static float number(uint64_t row, uint64_t column)
{
    uint64_t bits = (row * 0x9E3779B97F4A7C15u) ^ (column * 0xC2B2AE3D27D4EB4Fu);
    bits = (bits ^ bits >> 29) * 0xBF58476D1CE4E5B9u;
    return (float)(bits >> 40) / (float)(1 << 23) - 1;
}

static float *device_memory(size_t elements)
{
    void *address;
    CHECK(cudaMalloc(&address, elements * sizeof(float)));
    return address;
}

static void fill(float *device, size_t rows, size_t columns, int is_symmetric)
{
    float *host = malloc(rows * sizeof *host);
    for (size_t column = 0; column < columns; ++column) {
        for (size_t row = 0; row < rows; ++row)
            host[row] = is_symmetric && row > column ? number(column, row) : number(row, column);
        CHECK(cudaMemcpy(device + column * rows, host, rows * sizeof *host, cudaMemcpyHostToDevice));
    }
    free(host);
}

/* R of S = R^T R, in place, by its upper triangle. */
static void cholesky(float *s)
{
    for (int j = 0; j < VECTORS; ++j)
        for (int i = 0; i <= j; ++i) {
            double sum = s[i + j * VECTORS];
            for (int k = 0; k < i; ++k)
                sum -= (double)s[k + i * VECTORS] * s[k + j * VECTORS];
            s[i + j * VECTORS] = (float)(i == j ? sqrt(sum) : sum / s[i + i * VECTORS]);
        }
}

int main(int count, char **arguments)
{
    const int rows = count > 1 ? atoi(arguments[1]) : 16384, iterations = count > 2 ? atoi(arguments[2]) : 50;
    const float one = 1, zero = 0;
    float small[VECTORS * VECTORS] = {0};
    float *a = device_memory((size_t)rows * rows), *q = device_memory((size_t)rows * VECTORS);
    float *y = device_memory((size_t)rows * VECTORS), *r = device_memory(VECTORS * VECTORS);
    cublasHandle_t handle;
    struct timespec begin, end;
    fill(a, rows, rows, 1);
    fill(q, rows, VECTORS, 0);
    CHECK(cublasCreate(&handle));
    for (int turn = -5; turn < iterations; ++turn) {
        if (turn == 0)
            clock_gettime(CLOCK_MONOTONIC, &begin);
        CHECK(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, rows, VECTORS, rows, &one, a, rows, q, rows, &zero, y, rows));
        CHECK(cublasSsyrk(handle, CUBLAS_FILL_MODE_UPPER, CUBLAS_OP_T, VECTORS, rows, &one, y, rows, &zero, r, VECTORS));
        CHECK(cudaMemcpy(small, r, sizeof small, cudaMemcpyDeviceToHost));
        cholesky(small);
        CHECK(cudaMemcpy(r, small, sizeof small, cudaMemcpyHostToDevice));
        CHECK(cublasStrsm(handle, CUBLAS_SIDE_RIGHT, CUBLAS_FILL_MODE_UPPER, CUBLAS_OP_N, CUBLAS_DIAG_NON_UNIT, rows,
                          VECTORS, &one, r, VECTORS, y, rows));
        float *const next = y;
        y = q, q = next;
    }
    CHECK(cudaDeviceSynchronize());
    clock_gettime(CLOCK_MONOTONIC, &end);
    const double ms = 1e3 * (double)(end.tv_sec - begin.tv_sec) + 1e-6 * (double)(end.tv_nsec - begin.tv_nsec);
    printf("%.3f ms an iteration, result %.5g\n", ms / iterations, (double)small[0]);
    CHECK(cublasDestroy(handle));
    return 0;
}
