#pragma once
// Tensor core products sum += a b of bfloat16 or float16 matrices with f32 sums: PTX's mma.sync, named by shape. An
// `unsigned` holds two elements that are neighbours along k. With g = lane / 4 and t = lane % 4, a lane holds columns
// 2 t and 2 t + 1 of rows g (sum[0], sum[1]) and g + 8 (sum[2], sum[3]) of the sum. The emulator's versions are in
// mma_on_host.h.
#include "is_bfloat16.cuh"
#ifndef TSM2_HOST
// Multiply a (16 x 16) by b (16 x 8). Of a, a lane holds columns 2 t and 2 t + 1 of rows g (a0) and g + 8 (a1), and
// columns 2 t + 8 and 2 t + 9 of the same rows (a2, a3). Of b, it holds rows 2 t and 2 t + 1 (b0) and rows 2 t + 8
// and 2 t + 9 (b1) of column g.
template <class T>
__device__ __forceinline__ void mma_m16n8k16(
    float (&sum)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1)
{
    if constexpr (is_bfloat16<T>)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
            " { %0, %1, %2, %3 }, { %4, %5, %6, %7 }, { %8, %9 }, { %0, %1, %2, %3 };"
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
            " { %0, %1, %2, %3 }, { %4, %5, %6, %7 }, { %8, %9 }, { %0, %1, %2, %3 };"
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Multiply a (16 x 8) by b (8 x 8). Of a, a lane holds columns 2 t and 2 t + 1 of rows g (a0) and g + 8 (a1). Of b,
// it holds rows 2 t and 2 t + 1 of column g (b0).
template <class T>
__device__ __forceinline__ void mma_m16n8k8(float (&sum)[4], unsigned a0, unsigned a1, unsigned b0)
{
    if constexpr (is_bfloat16<T>)
        asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32"
            " { %0, %1, %2, %3 }, { %4, %5 }, { %6 }, { %0, %1, %2, %3 };"
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3]) : "r"(a0), "r"(a1), "r"(b0));
    else
        asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32"
            " { %0, %1, %2, %3 }, { %4, %5 }, { %6 }, { %0, %1, %2, %3 };"
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3]) : "r"(a0), "r"(a1), "r"(b0));
}
#endif
