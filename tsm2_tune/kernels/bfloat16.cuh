#pragma once
// bfloat16: the upper 16 bits of a float, rounded to nearest even.
struct bfloat16 {
    unsigned short bits;
    bfloat16() = default;
    __device__ __forceinline__ explicit bfloat16(float x)
    {
#if __CUDA_ARCH__ >= 800
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
#else
        const unsigned whole = __float_as_uint(x), last = whole >> 16 & 1;  // ties to even
        bits = x == x ? (whole + 0x7FFFu + last) >> 16 : 0x7FFFu;
#endif
    }
    __device__ __forceinline__ explicit operator float() const { return __uint_as_float(unsigned(bits) << 16); }
};
