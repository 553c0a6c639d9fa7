/* The CUDA driver, opened at run time. */

#ifndef TSM2_DRIVER_H
#define TSM2_DRIVER_H

#include <stddef.h>

typedef int cu_result; /* CUresult */
typedef void *cu_context, *cu_module, *cu_function, *cu_stream;
typedef unsigned long long cu_pointer; /* CUdeviceptr */

enum { CU_OUT_OF_MEMORY = 2, CU_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8 };
enum { CU_INVALID_VALUE = 1, CU_MEMORY_TYPE = 2, CU_MEMORY_OF_HOST = 1 };
enum { CU_COMPUTE_CAPABILITY_MAJOR = 75, CU_COMPUTE_CAPABILITY_MINOR = 76 };
enum { LEGACY_STREAM = 1 }; /* and 0: handles that stand for the default stream */
enum { CU_CAPTURE_RELAXED = 2 }; /* in which a thread may load and allocate while streams are captured into graphs */

/* Name in the table, symbol, parameters. */
#define DRIVER_FUNCTIONS(X)                                                                                          \
    X(init, "cuInit", (unsigned flags))                                                                              \
    X(error_name, "cuGetErrorName", (cu_result result, const char **name))                                           \
    X(current_context, "cuCtxGetCurrent", (cu_context *context))                                                     \
    X(push_context, "cuCtxPushCurrent_v2", (cu_context context))                                                     \
    X(pop_context, "cuCtxPopCurrent_v2", (cu_context *context))                                                      \
    X(await_context, "cuCtxSynchronize", (void))                                                                     \
    X(current_device, "cuCtxGetDevice", (int *device))                                                               \
    X(device_name, "cuDeviceGetName", (char *name, int bytes, int device))                                           \
    X(device_attribute, "cuDeviceGetAttribute", (int *value, int attribute, int device))                             \
    X(load_module, "cuModuleLoadData", (cu_module *module, const void *image))                                       \
    X(unload_module, "cuModuleUnload", (cu_module module))                                                           \
    X(module_function, "cuModuleGetFunction", (cu_function *function, cu_module module, const char *name))           \
    X(set_function_attribute, "cuFuncSetAttribute", (cu_function function, int attribute, int value))                \
    X(launch, "cuLaunchKernel",                                                                                      \
      (cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,  \
       unsigned block_z, unsigned smem_bytes, cu_stream stream, void **parameters, void **extra))                    \
    X(allocate, "cuMemAlloc_v2", (cu_pointer *address, size_t bytes))                                                \
    X(release, "cuMemFree_v2", (cu_pointer address))                                                                 \
    X(pointer_attribute, "cuPointerGetAttribute", (void *value, int attribute, cu_pointer address))                  \
    X(set_words, "cuMemsetD32Async", (cu_pointer address, unsigned value, size_t words, cu_stream stream))           \
    X(set_lines, "cuMemsetD2D8Async",                                                                                \
      (cu_pointer address, size_t pitch, unsigned char value, size_t width, size_t height, cu_stream stream))        \
    X(await_stream, "cuStreamSynchronize", (cu_stream stream))                                                       \
    X(exchange_capture_mode, "cuThreadExchangeStreamCaptureMode", (int *mode))                                       \
    X(stream_is_capturing, "cuStreamIsCapturing", (cu_stream stream, int *status))

struct driver {
    void *library; /* NULL where it is not open */
#define MEMBER(name, symbol, parameters) cu_result(*name) parameters;
    DRIVER_FUNCTIONS(MEMBER)
#undef MEMBER
    cu_result (*stream_id)(cu_stream stream, unsigned long long *id); /* NULL in a driver older than 12.0 */
};

/* Whether the driver is open now, and initialised. */
int driver_open(struct driver *driver);
void driver_close(struct driver *driver);

#endif
