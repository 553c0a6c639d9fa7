#pragma once
// A value that the compiler knows nothing of: what takes few instructions it would compute anew wherever it is used, or
// once and hold it in a register. The host's own is in cuda_on_host.h.
#ifndef TSM2_HOST
__device__ __forceinline__ int opaque(int value)
{
    asm volatile("" : "+r"(value));
    return value;
}
#endif
