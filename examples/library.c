/* C = A B by an exported C library, checked on the host. A is 100000 x 8, B is 8 x 8, in f64.

       tsm2-tune --device 0 --shapes 1e5x8x8 --dtype f64
       tsm2-tune export --format library --output libtsm2.so
       export CUDA_HOME=/usr/local/cuda # where the toolkit is
       cc examples/library.c -I. -I$CUDA_HOME/include -L. -L$CUDA_HOME/lib64 -ltsm2 -lcudart -o product
       LD_LIBRARY_PATH=.:$CUDA_HOME/lib64 ./product */

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

#include "libtsm2.h"

enum { M = 100000, N = 8, K = 8 };

static void check_cuda(cudaError_t error)
{
    if (error != cudaSuccess) {
        fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(error));
        exit(1);
    }
}

static void check(tsm2_handle handle, tsm2_status status)
{
    if (status != TSM2_SUCCESS) {
        fprintf(stderr, "%s: %s\n", tsm2_status_text(status), tsm2_last_error(handle));
        exit(1);
    }
}

/* So many elements in device memory, and in the host's: small whole numbers, so that all sums are exact. */
static double *filled(double *on_host, size_t elements)
{
    double *on_device;
    for (size_t i = 0; i < elements; ++i)
        on_host[i] = (double)(i * 7 % 11) - 5;
    check_cuda(cudaMalloc((void **)&on_device, elements * sizeof *on_host));
    check_cuda(cudaMemcpy(on_device, on_host, elements * sizeof *on_host, cudaMemcpyHostToDevice));
    return on_device;
}

static double a[M * K], b[K * N], c[M * N];

int main(void)
{
    const double alpha = 1, beta = 0;
    double *A = filled(a, M * K), *B = filled(b, K * N), *C = filled(c, M * N);
    tsm2_handle handle;
    cudaStream_t stream;
    char text[512];
    check_cuda(cudaStreamCreate(&stream));
    if (tsm2_create(&handle) != TSM2_SUCCESS) { /* for the device that the CUDA runtime is at */
        fprintf(stderr, "tsm2_create: %s\n", tsm2_last_error(NULL));
        return 1;
    }
    check(handle, tsm2_set_stream(handle, stream));

    check_cuda(cudaDeviceSynchronize()); /* the copies to the device were on another stream */
    check(handle, tsm2_choice(handle, TSM2_F64, TSM2_N, TSM2_N, M, N, K, A, M, B, K, M, text, sizeof text));
    puts(text);
    check(handle, tsm2_gemm_f64(handle, TSM2_N, TSM2_N, M, N, K, &alpha, A, M, B, K, &beta, C, M));
    check_cuda(cudaStreamSynchronize(stream));

    int wrong = 0;
    check_cuda(cudaMemcpy(c, C, sizeof c, cudaMemcpyDeviceToHost));
    for (int j = 0; j < N; ++j)
        for (int i = 0; i < M; ++i) {
            double sum = 0;
            for (int l = 0; l < K; ++l)
                sum += a[i + l * M] * b[l + j * K];
            wrong += c[i + j * M] != sum;
        }
    printf("%d of %d elements are wrong\n", wrong, M * N);

    check(NULL, tsm2_destroy(handle));
    check_cuda(cudaStreamDestroy(stream));
    check_cuda(cudaFree(A));
    check_cuda(cudaFree(B));
    check_cuda(cudaFree(C));
    return wrong != 0;
}
