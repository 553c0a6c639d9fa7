#pragma once
// Registers that hold neighbours as memory has them: 16-bit elements, two by two, and those of 32 bits.
#include "word.cuh"

// As many elements as `Bits` has room for; zeros from number `inside` on.
template <class Bits, class T, class Index>
__device__ __forceinline__ Bits gathered(const T *__restrict__ from, Index inside)
{
    using element_t = typename Word<sizeof(T)>::type;
    union { element_t element[sizeof(Bits) / sizeof(T)]; Bits bits; } both;
    #pragma unroll
    for (int e = 0; e < int(sizeof(Bits) / sizeof(T)); ++e)
        both.element[e] = e < inside ? *reinterpret_cast<const element_t *>(from + e) : 0;
    return both.bits;
}

// 32 bits of a vector of them.
template <class Bits>
__device__ __forceinline__ unsigned word(const Bits &bits, int w)
{
    return reinterpret_cast<const unsigned *>(&bits)[w];
}

// The lower, and the upper, 16 bits of two words: PTX's prmt.
__device__ __forceinline__ unsigned lower_halves(unsigned first, unsigned second)
{
    return __byte_perm(first, second, 0x5410);
}
__device__ __forceinline__ unsigned upper_halves(unsigned first, unsigned second)
{
    return __byte_perm(first, second, 0x7632);
}
