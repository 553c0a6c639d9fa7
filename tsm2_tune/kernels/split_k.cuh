#pragma once
// Blocks that split k leave their sums in a workspace, and the last of a tile's blocks to come adds them up.
#include "atomics.cuh"
#include "vector.cuh"

// Whether this block is the last of `count` to come to the counter, which is 0 then, as the next launch expects it.
__device__ __forceinline__ bool last_of(unsigned *counter, unsigned count)
{
    __shared__ unsigned before;
    __syncthreads();
    if (threadIdx.x == 0)
        before = atomic_inc_acq_rel(counter, count - 1);
    __syncthreads();
    return before == count - 1;
}

// At how many places of C a thread adds up sums at once, where it has so many.
constexpr __device__ __forceinline__ int places_at_once(int places) { return places >= 4 ? 4 : places >= 2 ? 2 : 1; }

// Of each of `count` neighbouring sums, `stride` elements apart, the vectors `at(p)` elements behind `from`, for
// several places p, added up in their order. In rounds of `at_once` sums, or of fewer where no thread of the block
// has more than `most`. A `fixed` stride is known when the kernel is compiled, so that the addresses of a round are
// offsets of one.
template <int at_once, bool fixed, class V, int places, class T, class At>
__device__ __forceinline__ void add_up_splits(
    V (&sum)[places], const T *from, At at, long long stride, int count, int most)
{
    using bits_t = typename V::bits_t;
    if constexpr (at_once >= (fixed ? 16 : 8)) {
        if (most <= at_once / 2)
            return add_up_splits<at_once / 2, fixed>(sum, from, at, stride, count, most);
    }
    #pragma unroll
    for (int p = 0; p < places; ++p)
        sum[p] = {};
    #pragma unroll 1
    for (int first = 0; first < count; first += at_once) {
        if constexpr (fixed) {
            V loaded[at_once][places] = {};  // 0 where there are no more, which changes no sum
            #pragma unroll
            for (int s = 0; s < at_once; ++s) {
                #pragma unroll
                for (int p = 0; p < places; ++p) {
                    const T *one = from + at(p) + (first + s) * stride;  // whatever the count is: no load waits for it
                    if (first + s < count)
                        loaded[s][p] = vector_of<V>(__ldcg(reinterpret_cast<const bits_t *>(one)));
                }
            }
            #pragma unroll
            for (int s = 0; s < at_once; ++s) {
                #pragma unroll
                for (int p = 0; p < places; ++p) {
                    #pragma unroll
                    for (int e = 0; e < V::width; ++e)
                        sum[p].element[e] += loaded[s][p].element[e];
                }
            }
        } else {
            V loaded[at_once][places];
            #pragma unroll
            for (int s = 0; s < at_once; ++s) {  // no load under a condition: it would keep registers
                #pragma unroll
                for (int p = 0; p < places; ++p) {  // where there are no more, all threads load the same
                    const T *one = from + (first + s < count ? at(p) + (first + s) * stride : 0);
                    loaded[s][p] = vector_of<V>(__ldcg(reinterpret_cast<const bits_t *>(one)));
                }
            }
            #pragma unroll
            for (int s = 0; s < at_once; ++s) {
                #pragma unroll
                for (int p = 0; p < places; ++p) {
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
