// The emulator's kernels/mma/wgmma.cuh: products of operands in shared memory, computed synchronously.
#pragma once

#include "block.h"

namespace tsm2_host {

struct Descriptor {
    uint64_t begin;
    unsigned row_bytes;

    // Return element `at` of a row in PTX's 64-byte or 128-byte swizzle.
    template <class T> const T &element(int row, int at) const
    {
        const uint64_t plain = begin + row * row_bytes + at * sizeof(T);
        return *reinterpret_cast<const T *>(plain ^ (plain >> 3 & (row_bytes - 16)));
    }
};

}  // namespace tsm2_host

inline void fence_proxy_async() {}
inline void wgmma_fence() {}
inline void wgmma_commit() {}
template <int pending_groups> inline void wgmma_wait() {}

template <int row_bytes> inline tsm2_host::Descriptor wgmma_descriptor(const void *begin)
{
    return {reinterpret_cast<uint64_t>(begin), row_bytes};
}

template <class T, bool a_along_k, bool b_along_k, class Vector, int n_tiles>
inline void wgmma_m64k16(Vector (&sum)[n_tiles], tsm2_host::Descriptor a, tsm2_host::Descriptor b)
{
    const int lane = threadIdx.x % 32, row_of_lane = threadIdx.x % 128 / 32 * 16 + lane / 4;
    for (int e = 0; e < 4 * n_tiles; ++e) {
        const int i = row_of_lane + e % 4 / 2 * 8, j = e / 4 * 8 + lane % 4 * 2 + e % 2;
        float &total = sum[e / 4].element[e % 4];
        for (int l = 0; l < 16; ++l) {
            const T factor = a_along_k ? a.element<T>(i, l) : a.element<T>(l, i);
            total = fmaf(float(factor), float(b_along_k ? b.element<T>(j, l) : b.element<T>(l, j)), total);
        }
    }
}
