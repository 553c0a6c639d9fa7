#pragma once
// Barrier for the blocks that have partial sums of one tile of C. Once all have arrived, they reduce the tile
// together: each block requests one slice of the tile after another.
#include "atomics.cuh"

// A tile's counter has three fields: blocks that arrived, blocks that departed before all had arrived, and slices
// requested. The last block to arrive releases the slices. Every block departs once: if it does not wait for the
// other blocks, or when it requests a slice and none remains. The last block to depart resets the counter to 0 for
// the next launch.
struct ArrivalBarrier {
    unsigned *const counter;
    const unsigned parts, slices;
    static constexpr unsigned arrival = 1, departure = 1 << 10, request = 1 << 20;  // increments of the fields
    static constexpr int max_blocks = departure - 1;  // capacity of the first field
    static constexpr long long timeout_cycles = 20000;  // about 10 us

    __device__ __forceinline__ ArrivalBarrier(unsigned *counter, unsigned parts, unsigned slices)
        : counter(counter), parts(parts), slices(slices) {}

    __device__ __forceinline__ bool all_arrived(unsigned now) const { return now % departure == parts; }

    // Reset the counter if `now`, its value after this block's update, says that all blocks have departed.
    __device__ __forceinline__ void reset_after(unsigned now) const
    {
        const unsigned departed = now % request / departure, requested = now / request;
        if (departed + (requested > slices ? requested - slices : 0) == parts)
            *counter = 0;
    }

    // Request a slice. Return the counter after the request in the block's first thread, 0 in the other threads.
    __device__ __forceinline__ unsigned request_slice() const
    {
        return threadIdx.x == 0 ? atomic_add_relaxed(counter, request) + request : 0;
    }

    // Return whether all blocks arrive within the time-out. A block that stops waiting reduces no slice.
    __device__ __forceinline__ bool wait() const
    {
        for (const long long since = clock64(); clock64() - since < timeout_cycles;) {
            if (all_arrived(load_acquire(counter)))
                return true;
        }
        return false;
    }

    // Return the slice that a request got, or a number >= `slices` if none remained. `now`: see request_slice().
    __device__ __forceinline__ int granted(unsigned now) const
    {
        __shared__ unsigned slice;
        if (threadIdx.x == 0) {
            slice = now / request - 1;
            reset_after(now);
        }
        __syncthreads();
        return slice;
    }

    // Arrive, after this block has stored its partial sums of the tile. Return the first slice for this block to
    // reduce, or a number >= `slices` if the block departed.
    __device__ __forceinline__ int arrive(bool waits) const
    {
        __shared__ bool stays;
        __syncthreads();
        if (threadIdx.x == 0) {
            // acq_rel: this block can then read what other blocks stored before they arrived. The other updates only
            // count, and are relaxed.
            stays = all_arrived(atomic_add_acq_rel(counter, arrival) + arrival) || (waits && wait());
            if (!stays)
                reset_after(atomic_add_relaxed(counter, departure) + departure);
        }
        __syncthreads();
        return stays ? granted(request_slice()) : slices;
    }
};
