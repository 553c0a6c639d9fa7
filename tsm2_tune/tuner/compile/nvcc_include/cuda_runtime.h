// nvcc includes this header before every source, in place of the toolkit's header with the same name. It declares only
// what kernels use.
// The declarations are the toolkit's own, so the machine code is the same. The toolkit's header has 1.3 MB with all
// that it includes, and takes half of a small kernel's compile time. This header has a quarter of that size.
#pragma once
#define __CUDA_INCLUDE_COMPILER_INTERNAL_HEADERS__  // otherwise the headers of crt/ print warnings
// Include guards of headers that kernels do not need: textures, surfaces, the host's API, and unused intrinsics. The
// headers below do not include them.
#define __TEXTURE_INDIRECT_FUNCTIONS_H__
#define __SURFACE_INDIRECT_FUNCTIONS_H__
#define __CUDA_RUNTIME_API_H__
#define __CUDA_DEVICE_RUNTIME_API_H__
#define __SM_20_ATOMIC_FUNCTIONS_H__
#define __SM_32_ATOMIC_FUNCTIONS_H__
#define __SM_35_ATOMIC_FUNCTIONS_H__
#define __SM_60_ATOMIC_FUNCTIONS_H__
#define __SM_35_INTRINSICS_H__
#define __SM_61_INTRINSICS_H__
#define __SM_70_RT_H__
#define __SM_90_RT_H__
#define __SM_100_RT_H__
#include <crt/host_config.h>
#include <crt/host_defines.h>
#include <vector_types.h>
#include <device_types.h>
#include <vector_functions.h>
#include <crt/device_functions.h>
#include <device_launch_parameters.h>
// The mathematical constants and functions that kernels use.
#define INFINITY (__builtin_inff())
extern "C" {
extern __host__ __device__ __device_builtin__ double fabs(double x) noexcept;
extern __host__ __device__ __device_builtin__ float fabsf(float x) noexcept;
extern __host__ __device__ __device_builtin__ double fma(double x, double y, double z) noexcept;
extern __host__ __device__ __device_builtin__ float fmaxf(float x, float y) noexcept;
extern __host__ __device__ __device_builtin__ float fminf(float x, float y) noexcept;
extern __host__ __device__ __device_builtin__ float sqrtf(float x) noexcept;
}
extern __device__ __device_builtin__ int min(const int a, const int b);
