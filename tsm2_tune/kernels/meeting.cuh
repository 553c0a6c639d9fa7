#pragma once
// How all blocks that have a part of a tile share the work of adding up.
#include "atomics.cuh"

// The blocks that have a part of a tile, at its counter: how many have come, how many did not wait for the last of
// them, and how many slices of the tile have been asked for. Who comes last makes the slices free. A block is gone
// when it did not wait, or when there was no slice left for it; the last to go makes the counter 0, as the next
// launch expects it.
struct Meeting {
    unsigned *const counter;
    const unsigned parts, slices;
    static constexpr unsigned came = 1, left_early = 1 << 10, asked = 1 << 20;
    static constexpr int most_blocks = left_early - 1;  // that can be counted
    static constexpr long long patience = 20000;  // cycles, 10 us

    __device__ __forceinline__ Meeting(unsigned *counter, unsigned parts, unsigned slices)
        : counter(counter), parts(parts), slices(slices) {}

    __device__ __forceinline__ bool all_came(unsigned now) const { return now % left_early == parts; }

    __device__ __forceinline__ void close_after(unsigned now) const
    {
        const unsigned gone = now % asked / left_early, slices_asked = now / asked;
        if (gone + (slices_asked > slices ? slices_asked - slices : 0) == parts)
            *counter = 0;
    }

    // The counter after the block has asked for a slice: of its first thread.
    __device__ __forceinline__ unsigned ask() const
    {
        return threadIdx.x == 0 ? atomic_add_relaxed(counter, asked) + asked : 0;
    }

    // Whether all have come, which is waited for some time: nothing is owed to who does not wait.
    __device__ __forceinline__ bool wait() const
    {
        for (const long long since = clock64(); clock64() - since < patience;) {
            if (all_came(load_acquire(counter)))
                return true;
        }
        return false;
    }

    // The slice that the block was given when it asked, or none.
    __device__ __forceinline__ int given(unsigned now) const
    {
        __shared__ unsigned slice;
        if (threadIdx.x == 0) {
            slice = now / asked - 1;
            close_after(now);
        }
        __syncthreads();
        return slice;
    }

    // After the block has left its part of the tile: the first slice that it is to add up, or none.
    __device__ __forceinline__ int come(bool waits) const
    {
        __shared__ bool stays;
        __syncthreads();
        if (threadIdx.x == 0) {
            // Coming orders memory, and nothing else: what the others wrote before they came can be read.
            stays = all_came(atomic_add_acq_rel(counter, came) + came) || (waits && wait());
            if (!stays)
                close_after(atomic_add_relaxed(counter, left_early) + left_early);
        }
        __syncthreads();
        return stays ? given(ask()) : slices;
    }
};
