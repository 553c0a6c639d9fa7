#pragma once
// Store a vector of C: C = alpha sum + beta C. C is read only if beta is not 0.
#include "vector.cuh"
template <class V>
__device__ __forceinline__ void store_vector(
    typename V::element_t *ptr_c, typename V::element_t alpha, V sum, typename V::element_t beta)
{
    auto *to = reinterpret_cast<typename V::bits_t *>(ptr_c);
    #pragma unroll
    for (int e = 0; e < V::width; ++e)
        sum.element[e] = alpha * sum.element[e];
    if (beta != 0) {
        const V before = vector_of<V>(__ldcs(to));
        #pragma unroll
        for (int e = 0; e < V::width; ++e)
            sum.element[e] += beta * before.element[e];
    }
    __stcs(to, bits_of(sum));
}

// Store `count` contiguous elements of C if the sums have another type than C: C = alpha sum + beta C.
template <int count, class T, class Sum>
__device__ __forceinline__ void store_sums(T *__restrict__ ptr_c, const Sum (&sum)[count], Sum alpha, Sum beta)
{
    using V = Vector<T, count>;
    auto *to = reinterpret_cast<typename V::bits_t *>(ptr_c);
    Sum total[count];
    #pragma unroll
    for (int e = 0; e < count; ++e)
        total[e] = alpha * sum[e];
    if (beta != 0) {
        const V before = vector_of<V>(__ldcs(to));
        #pragma unroll
        for (int e = 0; e < count; ++e)
            total[e] += beta * Sum(before.element[e]);
    }
    V result;
    #pragma unroll
    for (int e = 0; e < count; ++e)
        result.element[e] = T(total[e]);
    __stcs(to, bits_of(result));
}
