#pragma once
// Hopper's asynchronous warpgroup products sum += a b of matrices in shared memory: PTX's wgmma.mma_async. The
// emulator's versions are in wgmma_on_host.h.
#include "is_bfloat16.cuh"
#ifndef TSM2_HOST
// Make what this thread stored or copied to shared memory visible to the tensor cores.
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Call wgmma_fence before the first product and wgmma_commit after the last. wgmma_wait waits until at most
// `pending_groups` committed groups of products are in flight.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int pending_groups>
__device__ __forceinline__ void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(pending_groups) : "memory");
}

// Return the matrix descriptor of an operand with contiguous rows of 64 or 128 bytes in PTX's 64-byte or 128-byte
// swizzle. It contains the operand's address and the stride between groups of 8 rows.
template <int row_bytes, class T>
__device__ __forceinline__ unsigned long long wgmma_descriptor(const T *begin)
{
    static_assert(row_bytes == 64 || row_bytes == 128);
    constexpr unsigned long long order = 128 / row_bytes, to_next = 8 * row_bytes / 16;  // units of 16 bytes
    const unsigned address = unsigned(__cvta_generic_to_shared(begin));
    return address / 16 | to_next << 16 | to_next << 32 | order << 62;
}

// Multiply a 64 x 16 matrix by a 16 x 32 (or 16 x 64) matrix of bfloat16 or float16. Warp w has rows 16 w ... 16 w +
// 15 of the sum. sum[o] is for columns 8 o ... 8 o + 7: of these, lane 4 g + t has columns 2 t and 2 t + 1 of row g
// (elements 0 and 1) and of row g + 8 (elements 2 and 3).
template <class T, bool a_along_k, bool b_along_k, class Vector>
__device__ __forceinline__ void wgmma_m64k16(Vector (&sum)[4], unsigned long long a, unsigned long long b)
{
    if constexpr (is_bfloat16<T>)
        asm volatile(
            "{ .reg .pred add; setp.eq.b32 add, 0, 0;"
            " wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
            " %0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
            " }, %16, %17, add, 1, 1, %18, %19; }"
            : "+f"(sum[0].element[0]), "+f"(sum[0].element[1]), "+f"(sum[0].element[2]), "+f"(sum[0].element[3]),
              "+f"(sum[1].element[0]), "+f"(sum[1].element[1]), "+f"(sum[1].element[2]), "+f"(sum[1].element[3]),
              "+f"(sum[2].element[0]), "+f"(sum[2].element[1]), "+f"(sum[2].element[2]), "+f"(sum[2].element[3]),
              "+f"(sum[3].element[0]), "+f"(sum[3].element[1]), "+f"(sum[3].element[2]), "+f"(sum[3].element[3])
            : "l"(a), "l"(b), "n"(!a_along_k), "n"(!b_along_k) : "memory");
    else
        asm volatile(
            "{ .reg .pred add; setp.eq.b32 add, 0, 0;"
            " wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {"
            " %0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
            " }, %16, %17, add, 1, 1, %18, %19; }"
            : "+f"(sum[0].element[0]), "+f"(sum[0].element[1]), "+f"(sum[0].element[2]), "+f"(sum[0].element[3]),
              "+f"(sum[1].element[0]), "+f"(sum[1].element[1]), "+f"(sum[1].element[2]), "+f"(sum[1].element[3]),
              "+f"(sum[2].element[0]), "+f"(sum[2].element[1]), "+f"(sum[2].element[2]), "+f"(sum[2].element[3]),
              "+f"(sum[3].element[0]), "+f"(sum[3].element[1]), "+f"(sum[3].element[2]), "+f"(sum[3].element[3])
            : "l"(a), "l"(b), "n"(!a_along_k), "n"(!b_along_k) : "memory");
}

template <class T, bool a_along_k, bool b_along_k, class Vector>
__device__ __forceinline__ void wgmma_m64k16(Vector (&sum)[8], unsigned long long a, unsigned long long b)
{
    if constexpr (is_bfloat16<T>)
        asm volatile(
            "{ .reg .pred add; setp.eq.b32 add, 0, 0;"
            " wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
            " %0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
            " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
            " }, %32, %33, add, 1, 1, %34, %35; }"
            : "+f"(sum[0].element[0]), "+f"(sum[0].element[1]), "+f"(sum[0].element[2]), "+f"(sum[0].element[3]),
              "+f"(sum[1].element[0]), "+f"(sum[1].element[1]), "+f"(sum[1].element[2]), "+f"(sum[1].element[3]),
              "+f"(sum[2].element[0]), "+f"(sum[2].element[1]), "+f"(sum[2].element[2]), "+f"(sum[2].element[3]),
              "+f"(sum[3].element[0]), "+f"(sum[3].element[1]), "+f"(sum[3].element[2]), "+f"(sum[3].element[3]),
              "+f"(sum[4].element[0]), "+f"(sum[4].element[1]), "+f"(sum[4].element[2]), "+f"(sum[4].element[3]),
              "+f"(sum[5].element[0]), "+f"(sum[5].element[1]), "+f"(sum[5].element[2]), "+f"(sum[5].element[3]),
              "+f"(sum[6].element[0]), "+f"(sum[6].element[1]), "+f"(sum[6].element[2]), "+f"(sum[6].element[3]),
              "+f"(sum[7].element[0]), "+f"(sum[7].element[1]), "+f"(sum[7].element[2]), "+f"(sum[7].element[3])
            : "l"(a), "l"(b), "n"(!a_along_k), "n"(!b_along_k) : "memory");
    else
        asm volatile(
            "{ .reg .pred add; setp.eq.b32 add, 0, 0;"
            " wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
            " %0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
            " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
            " }, %32, %33, add, 1, 1, %34, %35; }"
            : "+f"(sum[0].element[0]), "+f"(sum[0].element[1]), "+f"(sum[0].element[2]), "+f"(sum[0].element[3]),
              "+f"(sum[1].element[0]), "+f"(sum[1].element[1]), "+f"(sum[1].element[2]), "+f"(sum[1].element[3]),
              "+f"(sum[2].element[0]), "+f"(sum[2].element[1]), "+f"(sum[2].element[2]), "+f"(sum[2].element[3]),
              "+f"(sum[3].element[0]), "+f"(sum[3].element[1]), "+f"(sum[3].element[2]), "+f"(sum[3].element[3]),
              "+f"(sum[4].element[0]), "+f"(sum[4].element[1]), "+f"(sum[4].element[2]), "+f"(sum[4].element[3]),
              "+f"(sum[5].element[0]), "+f"(sum[5].element[1]), "+f"(sum[5].element[2]), "+f"(sum[5].element[3]),
              "+f"(sum[6].element[0]), "+f"(sum[6].element[1]), "+f"(sum[6].element[2]), "+f"(sum[6].element[3]),
              "+f"(sum[7].element[0]), "+f"(sum[7].element[1]), "+f"(sum[7].element[2]), "+f"(sum[7].element[3])
            : "l"(a), "l"(b), "n"(!a_along_k), "n"(!b_along_k) : "memory");
}
#endif
