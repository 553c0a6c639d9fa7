#pragma once
// Reduction over a block, after its warps have stored partial sums of a tile in shared memory and passed a barrier.

// Call act(e) for this thread's elements of a tile of `count` elements.
template <int threads, class Act>
__device__ __forceinline__ void for_each_element(int count, Act act)
{
    #pragma unroll 4
    for (int round = 0; round < (count + threads - 1) / threads; ++round) {
        const int e = round * threads + threadIdx.x;
        if (e < count)
            act(e);
    }
}

// Return the sum of element e over the block's `sums` partial tiles, which are contiguous in `block_sums`.
template <int sums, int elements, class T>
__device__ __forceinline__ T block_sum(const T *block_sums, int e)
{
    T total = 0;
    #pragma unroll
    for (int s = 0; s < sums; ++s)
        total += block_sums[s * elements + e];
    return total;
}

// Call store(e, sum) for each element e of the tile, with its sum over the block's `sums` partial tiles.
template <int threads, int sums, int elements, class T, class Store>
__device__ __forceinline__ void reduce_tile(const T *block_sums, Store store)
{
    for_each_element<threads>(elements, [&](int e) { store(e, block_sum<sums, elements>(block_sums, e)); });
}
