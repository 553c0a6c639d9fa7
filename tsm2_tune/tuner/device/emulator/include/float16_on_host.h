// The emulator's kernels/float16.cuh: conversions of IEEE binary16.
#pragma once

inline unsigned short float_to_float16(float x)
{
    const unsigned whole = __float_as_uint(x), sign = whole >> 16 & 0x8000u, size = whole & 0x7FFFFFFFu;
    if (x != x)
        return 0x7FFFu;
    if (size >= 0x477FF000u)  // 65520, nearer to infinity than to 65504
        return sign | 0x7C00u;
    if (size < 0x38800000u)  // 2**-14: a multiple of 2**-24, as are the floats from 0.5 to 1
        return sign | (__float_as_uint(__uint_as_float(size) + 0.5f) - 0x3F000000u);
    return sign | (size - 0x38000000u + 0xFFFu + (size >> 13 & 1)) >> 13;  // ties to even
}

inline float float16_to_float(unsigned short bits)
{
    const unsigned sign = (bits & 0x8000u) << 16, size = (bits & 0x7FFFu) << 13;
    if (size >= 0x7C00u << 13)  // infinity or NaN
        return __uint_as_float(sign | 0x70000000u | size);
    const float magnitude = __uint_as_float(size) * 0x1p112f;  // exact, of subnormal numbers too
    return sign ? -magnitude : magnitude;
}
