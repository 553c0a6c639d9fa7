// The emulator's kernels/mma/ldmatrix.cuh: loads and transposes of 8 x 8 matrices by a warp.
#pragma once

#include "block.h"

#include <string.h>

namespace tsm2_host {

// Load a word of each of `count` matrices. Each lane has the address of a row.
template <bool transposed, int count> inline void load_matrices(unsigned (&to)[count], const void *row, int line)
{
    static const char *lanes[2][most_threads];
    const char **rows = lanes[exchange_slot()];
    rows[threadIdx.x] = static_cast<const char *>(row);
    sync_lanes(line);
    const int lane = threadIdx.x % 32, first = threadIdx.x - lane, g = lane / 4, t = lane % 4;
    for (int w = 0; w < count; ++w) {
        unsigned short halves[2];
        for (int half = 0; half < 2; ++half) {
            const char *of_row = rows[first + 8 * w + (transposed ? 2 * t + half : g)];
            memcpy(&halves[half], of_row + 2 * (transposed ? g : 2 * t + half), 2);
        }
        to[w] = halves[0] | unsigned(halves[1]) << 16;
    }
}

}  // namespace tsm2_host

inline void ldmatrix(uint4 &to, const void *row, int line = __builtin_LINE())
{
    unsigned words[4];
    tsm2_host::load_matrices<false>(words, row, line);
    to = {words[0], words[1], words[2], words[3]};
}
inline void ldmatrix_trans(unsigned &to, const void *row, int line = __builtin_LINE())
{
    unsigned words[1];
    tsm2_host::load_matrices<true>(words, row, line);
    to = words[0];
}
inline void ldmatrix_trans(uint2 &to, const void *row, int line = __builtin_LINE())
{
    unsigned words[2];
    tsm2_host::load_matrices<true>(words, row, line);
    to = {words[0], words[1]};
}
inline void ldmatrix_trans(uint4 &to, const void *row, int line = __builtin_LINE())
{
    unsigned words[4];
    tsm2_host::load_matrices<true>(words, row, line);
    to = {words[0], words[1], words[2], words[3]};
}

inline unsigned movmatrix_trans(unsigned bits, int line = __builtin_LINE())
{
    static unsigned lanes[2][tsm2_host::most_threads];
    unsigned *words = lanes[tsm2_host::exchange_slot()];
    words[threadIdx.x] = bits;
    tsm2_host::sync_lanes(line);
    const int lane = threadIdx.x % 32, first = threadIdx.x - lane + lane % 4 * 8 + lane / 8;
    const int half = lane / 4 % 2 * 16;
    return (words[first] >> half & 0xFFFF) | (words[first + 4] >> half & 0xFFFF) << 16;
}
