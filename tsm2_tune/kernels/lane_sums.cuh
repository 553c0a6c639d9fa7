#pragma once
// How the lanes of a row add up the sums that each of them has: a lane gives its neighbour half of them and keeps the
// other half, then with the next neighbour half of those, and so on; where their count is odd, both keep them all.
__host__ __device__ constexpr int halved(int count) { return count % 2 == 0 ? count / 2 : count; }

// The sums that a lane has in the end.
__host__ __device__ constexpr int kept_of(int count, int lanes_left)
{
    return lanes_left == 1 ? count : kept_of(halved(count), lanes_left / 2);
}

// The bits of a lane's number in which it differs from the others that have the same sums in the end.
__host__ __device__ constexpr int doubled_of(int count, int lanes_left)
{
    return lanes_left == 1 ? 0 : doubled_of(halved(count), lanes_left / 2) | (count % 2 == 0 ? 0 : lanes_left / 2);
}
