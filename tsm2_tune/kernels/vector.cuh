#pragma once
// Neighbours in memory that one load or store moves: as CUDA's type of so many bytes, which is `Bits`.
#include "word.cuh"
template <class T, int count, class Bits = typename Word<count * sizeof(T)>::type>
struct alignas(count * sizeof(T)) Vector {
    using element_t = T;
    using bits_t = Bits;
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
