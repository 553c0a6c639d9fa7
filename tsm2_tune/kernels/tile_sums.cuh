#pragma once
// The sums of a tile that a block's warps have left in shared memory, before they met at a barrier.

// act(e) for those of `count` elements of a tile that are this thread's.
template <int threads, class Act>
__device__ __forceinline__ void for_each_of_thread(int count, Act act)
{
    #pragma unroll 4
    for (int turn = 0; turn < (count + threads - 1) / threads; ++turn) {
        const int e = turn * threads + threadIdx.x;
        if (e < count)
            act(e);
    }
}

// The sum of element e of a tile, of which a block's warps have left `sums` sums, one tile after another.
template <int sums, int elements, class T>
__device__ __forceinline__ T sum_of_block(const T *left, int e)
{
    T total = 0;
    #pragma unroll
    for (int s = 0; s < sums; ++s)
        total += left[s * elements + e];
    return total;
}

// put(e, sum) for each element of the tile.
template <int threads, int sums, int elements, class T, class Put>
__device__ __forceinline__ void put_tile(const T *left, Put put)
{
    for_each_of_thread<threads>(elements, [&](int e) { put(e, sum_of_block<sums, elements>(left, e)); });
}
