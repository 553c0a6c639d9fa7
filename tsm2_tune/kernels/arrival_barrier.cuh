#pragma once
// The blocks that have sums of one tile of C reduce them together, slice by slice.
#include "atomics.cuh"

// A tile's counter has three fields: blocks that arrived, blocks that departed without waiting, and slices requested.
// The last block to arrive releases the slices. Every block departs once: when it does not wait, or when it requests
// a slice and none remains. The last to depart resets the counter to 0 for the next launch.
struct ArrivalBarrier {
    unsigned *const counter;
    const unsigned parts, slices;
    static constexpr unsigned arrival = 1, departure = 1 << 10, request = 1 << 20;  // one of each in the counter
    static constexpr int max_blocks = departure - 1;  // that the first field can count
    static constexpr long long timeout_cycles = 20000;  // 10 us

    __device__ __forceinline__ ArrivalBarrier(unsigned *counter, unsigned parts, unsigned slices)
        : counter(counter), parts(parts), slices(slices) {}

    __device__ __forceinline__ bool all_arrived(unsigned now) const { return now % departure == parts; }

    // Reset the counter if, at this value of it, all blocks have departed.
    __device__ __forceinline__ void reset_after(unsigned now) const
    {
        const unsigned departed = now % request / departure, requested = now / request;
        if (departed + (requested > slices ? requested - slices : 0) == parts)
            *counter = 0;
    }

    // Request a slice. The block's first thread gets the counter after the request, the others 0.
    __device__ __forceinline__ unsigned request_slice() const
    {
        return threadIdx.x == 0 ? atomic_add_relaxed(counter, request) + request : 0;
    }

    // Return whether all blocks arrived within the time-out. A block that stops waiting reduces nothing.
    __device__ __forceinline__ bool wait() const
    {
        for (const long long since = clock64(); clock64() - since < timeout_cycles;) {
            if (all_arrived(load_acquire(counter)))
                return true;
        }
        return false;
    }

    // Return the slice that a request was granted, or a number from `slices` on if none remained.
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

    // Arrive after this block has stored its sums of the tile. Return the first slice that it is to reduce, or a
    // number from `slices` on if it departed.
    __device__ __forceinline__ int arrive(bool waits) const
    {
        __shared__ bool stays;
        __syncthreads();
        if (threadIdx.x == 0) {
            // The arrival is acq_rel, so that what others stored before theirs can be read. Other updates are
            // relaxed.
            stays = all_arrived(atomic_add_acq_rel(counter, arrival) + arrival) || (waits && wait());
            if (!stays)
                reset_after(atomic_add_relaxed(counter, departure) + departure);
        }
        __syncthreads();
        return stays ? granted(request_slice()) : slices;
    }
};
