#pragma once
// Split-k: each block stores the partial sums of its k slice in a workspace. The last block of a tile of C to arrive
// adds them up.
#include "atomics.cuh"
#include "vector.cuh"

// Arrive at the counter. Return whether this block is the last of `count` blocks; the counter is then 0 again.
__device__ __forceinline__ bool arrives_last(unsigned *counter, unsigned count)
{
    __shared__ unsigned previous;
    __syncthreads();
    if (threadIdx.x == 0)
        previous = atomic_inc_acq_rel(counter, count - 1);
    __syncthreads();
    return previous == count - 1;
}

// Return how many vectors of C a thread adds up at once, if it has `vectors` of them.
constexpr __device__ __forceinline__ int vectors_at_once(int vectors)
{
    return vectors >= 4 ? 4 : vectors >= 2 ? 2 : 1;
}

// For each vector p of C, add up its `count` partial sums. They are `stride` elements apart, and the first is at
// `from` + offset_of(p). The order of additions is fixed. A round loads `at_once` partial sums of each vector.
// `max_count`: the largest `count` of the block's threads. `at_once` is halved while `max_count` fits in half of it,
// at most down to 8 (fixed stride) or 4.
// `is_fixed_stride`: the caller passes a constant stride, which inlining propagates. So a round's addresses are
// immediate offsets from one register.
template <int at_once, bool is_fixed_stride, class V, int vectors, class T, class Offset>
__device__ __forceinline__ void sum_splits(
    V (&sum)[vectors], const T *from, Offset offset_of, long long stride, int count, int max_count)
{
    using bits_t = typename V::bits_t;
    if constexpr (at_once >= (is_fixed_stride ? 16 : 8)) {
        if (max_count <= at_once / 2)
            return sum_splits<at_once / 2, is_fixed_stride>(sum, from, offset_of, stride, count, max_count);
    }
    #pragma unroll
    for (int p = 0; p < vectors; ++p)
        sum[p] = {};
    #pragma unroll 1
    for (int first = 0; first < count; first += at_once) {
        if constexpr (is_fixed_stride) {
            V loaded[at_once][vectors] = {};  // zeros past the last partial sum do not change the sum
            #pragma unroll
            for (int s = 0; s < at_once; ++s) {
                #pragma unroll
                for (int p = 0; p < vectors; ++p) {
                    const T *one = from + offset_of(p) + (first + s) * stride;  // so no address depends on `count`
                    if (first + s < count)
                        loaded[s][p] = vector_of<V>(__ldcg(reinterpret_cast<const bits_t *>(one)));
                }
            }
            #pragma unroll
            for (int s = 0; s < at_once; ++s) {
                #pragma unroll
                for (int p = 0; p < vectors; ++p) {
                    #pragma unroll
                    for (int e = 0; e < V::width; ++e)
                        sum[p].element[e] += loaded[s][p].element[e];
                }
            }
        } else {
            V loaded[at_once][vectors];
            #pragma unroll
            for (int s = 0; s < at_once; ++s) {  // a predicated load would need more registers
                #pragma unroll
                for (int p = 0; p < vectors; ++p) {  // past the last partial sum all threads load `from`
                    const T *one = from + (first + s < count ? offset_of(p) + (first + s) * stride : 0);
                    loaded[s][p] = vector_of<V>(__ldcg(reinterpret_cast<const bits_t *>(one)));
                }
            }
            #pragma unroll
            for (int s = 0; s < at_once; ++s) {
                #pragma unroll
                for (int p = 0; p < vectors; ++p) {
                    #pragma unroll
                    for (int e = 0; e < V::width; ++e) {
                        if (first + s < count)
                            sum[p].element[e] += loaded[s][p].element[e];
                    }
                }
            }
        }
    }
}
