#pragma once
// A block's chunks of k, whose elements each thread loads into registers some chunks ahead of their use.

template <bool holds> struct Flag { static constexpr bool value = holds; };

// Chunks from, from + splits, ... before `end`; returns the next one. load(a, b, block_k) loads one and multiply(a, b)
// multiplies it, and `stages` of them are in registers.
template <int stages, class A, class B, class Index, class Load, class Multiply>
__device__ __forceinline__ Index sweep(Index from, Index end, int splits, const Load &load, const Multiply &multiply)
{
    A a[stages];
    B b[stages];
    Index next = from;  // chunk to load
    const auto load_next = [&](A &to_a, B &to_b) {
        if (next >= end)
            return;
        load(to_a, to_b, next);
        next += splits;
    };
    #pragma unroll
    for (int s = 0; s < stages; ++s)
        load_next(a[s], b[s]);
    for (Index current = from; current < end;) {
        #pragma unroll
        for (int s = 0; s < stages; ++s) {
            if (current < end)
                multiply(a[s], b[s]);
            load_next(a[s], b[s]);
            __syncwarp();  // keeps the compiler from putting these loads off
            current += splits;
        }
    }
    return next;
}
