#pragma once
// Reduction over the lanes of a row, each of which has a partial sum of every element. In each step a lane exchanges
// half of its elements with a partner, keeps the other half, and adds. If their count is odd, both keep all of them.
__host__ __device__ constexpr int halved(int count) { return count % 2 == 0 ? count / 2 : count; }

// Return how many sums a lane has after the last step.
__host__ __device__ constexpr int sums_kept(int count, int remaining_lanes)
{
    return remaining_lanes == 1 ? count : sums_kept(halved(count), remaining_lanes / 2);
}

// Return the bits of a lane's number in which lanes with the same sums differ after the last step.
__host__ __device__ constexpr int duplicates_mask(int count, int remaining_lanes)
{
    return remaining_lanes == 1
        ? 0 : duplicates_mask(halved(count), remaining_lanes / 2) | (count % 2 == 0 ? 0 : remaining_lanes / 2);
}
