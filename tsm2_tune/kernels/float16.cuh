#pragma once
// IEEE's binary16: 5 exponent bits, 11 significant bits. The emulator's conversions are in float16_on_host.h.
#ifndef TSM2_HOST
__device__ __forceinline__ unsigned short float_to_float16(float x)
{
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}

__device__ __forceinline__ float float16_to_float(unsigned short bits)
{
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}
#endif

struct float16 {
    unsigned short bits;
    float16() = default;
    __device__ __forceinline__ explicit float16(float x) : bits(float_to_float16(x)) {}
    __device__ __forceinline__ explicit operator float() const { return float16_to_float(bits); }
};
