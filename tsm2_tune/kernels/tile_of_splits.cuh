#pragma once
// The end of a kernel whose blocks split k: the sums that a block's warps have left in shared memory into the
// workspace, and from there, by the last block to come, into C.
#include "split_k.cuh"
#include "tile_sums.cuh"

// keep(e, sum) for each of so many `elements` of a tile, of `count` sums of it, one behind the other from `from` on.
// At `left` is room for `adders` sums: adders, which are some threads each, take every adders-th sum; then theirs are
// added up. There are as many as the block has threads for, a vector each, or fewer.
template <class V, int threads, int elements, int adders, int most_loads, class T, class Keep>
__device__ __forceinline__ void add_up_tile(T *left, const T *from, int count, Keep keep)
{
    constexpr int vectors = elements / V::width, of_adders = adders * vectors;
    constexpr int places = places_at_once((of_adders + threads - 1) / threads);
    static_assert(adders == 1 || places == 1, "a thread's places are one adder's");
    for (int v = threadIdx.x; v < of_adders; v += places * threads) {
        const int adder = v / vectors;
        const auto place_at = [&](int p) { return (v + p * threads < of_adders ? v + p * threads : v) * V::width; };
        V sum[places];
        add_up_splits<most_loads / places, true>(
            sum, from, place_at, adders * elements, (count - adder + adders - 1) / adders,
            (count + adders - 1) / adders);
        #pragma unroll
        for (int p = 0; p < places; ++p)
            *reinterpret_cast<V *>(left + place_at(p)) = sum[p];
    }
    __syncthreads();
    for_each_of_thread<threads>(elements, [&](int e) {
        T total = 0;
        #pragma unroll
        for (int adder = 0; adder < adders; ++adder)
            total += left[adder * elements + e];
        keep(e, total);
    });
}

// put(e, sum) for each element of a tile that `splits` blocks share, by the last of them to come: as put_tile, of all
// their sums. Of more than `flat_splits` the sums of groups are added up by the last of each, and theirs by the last
// of all.
template <class V, int threads, int sums_of_tile, int elements, int adders, int flat_splits, int group_splits,
          int most_loads, class T, class Index, class Put>
__device__ __forceinline__ void put_tile_of_splits(
    T *left, T *partials, unsigned *counters, const Index &tile, const int &splits, const int &split, const Put &put)
{
    const int groups = splits > flat_splits ? (splits + group_splits - 1) / group_splits : 0;
    T *sums = partials + tile * (long long)(splits + groups) * elements;  // the splits', then the groups'
    for_each_of_thread<threads>(elements, [&](int e) {
        __stcg(sums + split * elements + e, sum_of_block<sums_of_tile, elements>(left, e));
    });
    const auto add_up = [&](const T *from, int count, auto keep) {
        add_up_tile<V, threads, elements, adders, most_loads>(left, from, count, keep);
    };
    unsigned *counter = counters + tile * (1 + groups);
    const T *last_sums = sums;
    int last_count = splits;
    if (groups > 0) {
        const int group = split / group_splits, first = group * group_splits;
        const int members = splits - first < group_splits ? splits - first : group_splits;
        if (!last_of(counter + 1 + group, members))
            return;
        add_up(sums + first * elements, members, [&](int e, T value) {
            __stcg(sums + (splits + group) * elements + e, value);
        });
        last_sums += splits * elements;
        last_count = groups;
    }
    if (last_of(counter, last_count))
        add_up(last_sums, last_count, put);
}
