#pragma once
// Reduction over the lanes that share a row of C: each has a partial sum of every element. In each step a lane sends
// half of its sums to a partner, and adds what it receives to the other half. If their number is odd, both lanes send
// and keep all sums.
__host__ __device__ constexpr int halved(int count) { return count % 2 == 0 ? count / 2 : count; }

// Return how many of its `count` sums a lane keeps after the last step.
__host__ __device__ constexpr int sums_kept(int count, int remaining_lanes)
{
    return remaining_lanes == 1 ? count : sums_kept(halved(count), remaining_lanes / 2);
}

// Return a mask of lane number bits. Lanes that differ only in these bits have the same sums after the last step.
__host__ __device__ constexpr int duplicates_mask(int count, int remaining_lanes)
{
    return remaining_lanes == 1
        ? 0 : duplicates_mask(halved(count), remaining_lanes / 2) | (count % 2 == 0 ? 0 : remaining_lanes / 2);
}
