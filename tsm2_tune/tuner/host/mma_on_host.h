// What a GPU's tensor cores compute, as kernels/mma_f64.cuh has it: lanes of a warp exchange what they hold.
#pragma once

#include "block.h"

#include <math.h>

namespace tsm2_host {

// sum += a b: a lane holds `of_a` elements of the first and `of_b` of the second, every fourth along k, and of the sum
// two neighbours in each of `rows` rows.
template <int of_a, int of_b, int rows>
inline void multiply_lanes(double (&sum)[2 * rows], const double (&a)[of_a], const double (&b)[of_b], int line)
{
    static double lanes[most_threads][of_a + of_b];
    memcpy(lanes[threadIdx.x], a, sizeof a);
    memcpy(lanes[threadIdx.x] + of_a, b, sizeof b);
    meet_lanes(line);
    const int lane = threadIdx.x % 32, first = threadIdx.x - lane;
    for (int e = 0; e < 2 * rows; ++e) {
        const int column = lane % 4 * 2 + e % 2;
        for (int l = 0; l < 4 * of_b; ++l) {
            const double factor = lanes[first + lane / 4 * 4 + l % 4][e / 2 + l / 4 * rows];
            sum[e] = fma(factor, lanes[first + column * 4 + l % 4][of_a + l / 4], sum[e]);
        }
    }
    meet_lanes(-line);
}

}  // namespace tsm2_host

inline void mma_m16n8k8(
    double (&sum)[4], const double (&a)[4], const double (&b)[2], int line = __builtin_LINE())
{
    tsm2_host::multiply_lanes<4, 2, 2>(sum, a, b, line);
}
inline void mma_m16n8k16(
    double (&sum)[4], const double (&a)[8], const double (&b)[4], int line = __builtin_LINE())
{
    tsm2_host::multiply_lanes<8, 4, 2>(sum, a, b, line);
}
inline void mma_m8n8k4_twice(
    double (&sum)[2], const double (&a)[2], const double (&b)[2], int line = __builtin_LINE())
{
    tsm2_host::multiply_lanes<2, 2, 1>(sum, a, b, line);
}
