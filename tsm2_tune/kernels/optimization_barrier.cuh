#pragma once
// Hide a value from the compiler: otherwise it computes a cheap expression again at each use, or holds the result in
// a register for long. The emulator's version is in cuda_on_host.h.
#ifndef TSM2_HOST
__device__ __forceinline__ int optimization_barrier(int value)
{
    asm volatile("" : "+r"(value));
    return value;
}
#endif
