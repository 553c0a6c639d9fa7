#pragma once
// Reduction over the grid, at the end of a split-k kernel. Each block stores its partial sums of a tile of C in the
// workspace. The last block of a tile to arrive adds them up and stores the tile to C.
#include "split_k.cuh"
#include "block_reduce.cuh"

// Add up `count` partial tiles, which are contiguous at `from`, and call store(e, sum) for each element e of the
// tile. `adders` threads share a vector: each adds up every adders-th partial tile. Then their sums are added up in
// `block_sums`, which has room for `adders` tiles.
template <class V, int threads, int elements, int adders, int max_loads, class T, class Store>
__device__ __forceinline__ void sum_tile(T *block_sums, const T *from, int count, Store store)
{
    constexpr int vectors = elements / V::width, all_vectors = adders * vectors;
    constexpr int at_once = vectors_at_once((all_vectors + threads - 1) / threads);
    static_assert(adders == 1 || at_once == 1, "all vectors of a thread belong to one adder");
    for (int v = threadIdx.x; v < all_vectors; v += at_once * threads) {
        const int adder = v / vectors;
        const auto offset_of = [&](int p) { return (v + p * threads < all_vectors
            ? v + p * threads : v) * V::width; };
        V sum[at_once];
        sum_splits<max_loads / at_once, true>(
            sum, from, offset_of, adders * elements, (count - adder + adders - 1) / adders,
            (count + adders - 1) / adders);
        #pragma unroll
        for (int p = 0; p < at_once; ++p)
            *reinterpret_cast<V *>(block_sums + offset_of(p)) = sum[p];
    }
    __syncthreads();
    for_each_element<threads>(elements, [&](int e) {
        T total = 0;
        #pragma unroll
        for (int adder = 0; adder < adders; ++adder)
            total += block_sums[adder * elements + e];
        store(e, total);
    });
}

// Reduce a tile of C over its split-k slices, one in each of `splits` blocks. The last block to arrive calls store(e,
// sum) for each element e. If there are more than `flat_splits` slices, blocks form groups of `group_splits`: the
// last block of a group adds up the group's partial tiles, and the last of these blocks adds up the groups' sums.
template <class V, int threads, int sums_of_tile, int elements, int adders, int flat_splits, int group_splits,
          int max_loads, class T, class Index, class Store>
__device__ __forceinline__ void reduce_tile_of_splits(
    T *block_sums, T *partials, unsigned *counters, const Index &tile, const int &splits, const int &split,
    const Store &store)
{
    const int groups = splits > flat_splits ? (splits + group_splits - 1) / group_splits : 0;
    T *sums = partials + tile * (long long)(splits + groups) * elements;  // of splits, then groups
    for_each_element<threads>(elements, [&](int e) {
        __stcg(sums + split * elements + e, block_sum<sums_of_tile, elements>(block_sums, e));
    });
    const auto sum_up = [&](const T *from, int count, auto store_sum) {
        sum_tile<V, threads, elements, adders, max_loads>(block_sums, from, count, store_sum);
    };
    unsigned *counter = counters + tile * (1 + groups);
    const T *last_sums = sums;
    int last_count = splits;
    if (groups > 0) {
        const int group = split / group_splits, first = group * group_splits;
        const int members = splits - first < group_splits ? splits - first : group_splits;
        if (!arrives_last(counter + 1 + group, members))
            return;
        sum_up(sums + first * elements, members, [&](int e, T value) {
            __stcg(sums + (splits + group) * elements + e, value);
        });
        last_sums += splits * elements;
        last_count = groups;
    }
    if (arrives_last(counter, last_count))
        sum_up(last_sums, last_count, store);
}
