#pragma once
// Main loop over a block's k tiles, with a pipeline in registers: a thread loads its elements of a k tile `stages` k
// tiles before it multiplies them.

template <bool holds> struct bool_constant { static constexpr bool value = holds; };

// Process k tiles `from`, `from` + `splits`, ... below `end`. Return the first of this sequence that is not below
// `end`. load(a, b, tile) loads a k tile's elements into a and b, and multiply(a, b) adds their products to the sums.
template <int stages, class A, class B, class Index, class Load, class Multiply>
__device__ __forceinline__ Index run_register_pipeline(
    Index from, Index end, int splits, const Load &load, const Multiply &multiply)
{
    A a[stages];
    B b[stages];
    Index next = from;  // k tile to load
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
            __syncwarp();  // keeps the compiler from moving the loads down
            current += splits;
        }
    }
    return next;
}
