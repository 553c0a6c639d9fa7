#pragma once
// Vectors: contiguous elements that one instruction loads or stores. `Word<bytes>` is CUDA's type of that size.
template <int bytes> struct Word;
template <> struct Word<2> { using type = unsigned short; };
template <> struct Word<4> { using type = unsigned; };
template <> struct Word<8> { using type = uint2; };
template <> struct Word<16> { using type = uint4; };

template <class T, int count, class Bits = typename Word<count * sizeof(T)>::type>
struct alignas(count * sizeof(T)) Vector {
    using element_t = T;
    using bits_t = Bits;  // type that is loaded and stored
    static constexpr int width = count;
    T element[count];
};

template <class V>
__device__ __forceinline__ V vector_of(typename V::bits_t bits)
{
    union { typename V::bits_t bits; V elements; } both = {bits};
    return both.elements;
}

template <class V>
__device__ __forceinline__ typename V::bits_t bits_of(const V &elements)
{
    union { V elements; typename V::bits_t bits; } both = {elements};
    return both.bits;
}

// Load as many elements as `Bits` holds, one by one: the first `valid` of them, and zeros for the rest.
template <class Bits, class T, class Index>
__device__ __forceinline__ Bits load_zfill(const T *__restrict__ from, Index valid)
{
    using element_t = typename Word<sizeof(T)>::type;
    union { element_t element[sizeof(Bits) / sizeof(T)]; Bits bits; } both;
    #pragma unroll
    for (int e = 0; e < int(sizeof(Bits) / sizeof(T)); ++e)
        both.element[e] = e < valid ? *reinterpret_cast<const element_t *>(from + e) : 0;
    return both.bits;
}

// Return 32-bit word `w` of a vector.
template <class Bits>
__device__ __forceinline__ unsigned word(const Bits &bits, int w)
{
    return reinterpret_cast<const unsigned *>(&bits)[w];
}

// Pack the lower, or the upper, 16 bits of two words into one: PTX's prmt.
__device__ __forceinline__ unsigned lower_halves(unsigned first, unsigned second)
{
    return __byte_perm(first, second, 0x5410);
}
__device__ __forceinline__ unsigned upper_halves(unsigned first, unsigned second)
{
    return __byte_perm(first, second, 0x7632);
}
