#pragma once
// Hide from the compiler how a value was computed. Otherwise it would compute a cheap expression again at each use,
// or keep a result in a register for long. The emulator's version is in cuda_on_host.h.
#ifndef TSM2_HOST
__device__ __forceinline__ int optimization_barrier(int value)
{
    asm volatile("" : "+r"(value));
    return value;
}
#endif
