#pragma once
// Tensor core products sum += a b of f32 matrices. Factors are rounded to TF32's 11 significant bits, or split into
// two TF32 numbers for three products (3xTF32), nearly as exact as f32. Factors are passed as the bits of floats. The
// emulator's versions of the instructions are in mma_on_host.h.
#ifndef TSM2_HOST
// Round a float to TF32.
__device__ __forceinline__ unsigned tf32_big(unsigned bits)
{
    unsigned big;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(big) : "f"(__uint_as_float(bits)));
    return big;
}

// Multiply a (16 x 8) by b (8 x 8), both rounded to TF32. With g = lane / 4 and t = lane % 4, a lane holds column t
// of rows g (a0) and g + 8 (a1) of a, column t + 4 of the same rows (a2, a3), rows t (b0) and t + 4 (b1) of column g
// of b, and columns 2 t and 2 t + 1 of rows g (sum[0], sum[1]) and g + 8 of the sum.
__device__ __forceinline__ void mma_m16n8k8_tf32(
    float (&sum)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1)
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"
        " { %0, %1, %2, %3 }, { %4, %5, %6, %7 }, { %8, %9 }, { %0, %1, %2, %3 };"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
#endif

// Return the error of rounding a float to TF32, itself rounded to TF32.
__device__ __forceinline__ unsigned tf32_small(unsigned bits)
{
    return tf32_big(__float_as_uint(__uint_as_float(bits) - __uint_as_float(tf32_big(bits))));
}

// Multiply f32 matrices, with the fragments of mma_m16n8k8_tf32. If `products` is 1, factors are rounded to TF32. If
// it is 3, a factor is the sum of a big and a small TF32 number, and only the product of two small numbers is
// omitted.
template <int products>
__device__ __forceinline__ void mma_m16n8k8_f32(
    float (&sum)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1)
{
    const unsigned a[4] = {tf32_big(a0), tf32_big(a1), tf32_big(a2), tf32_big(a3)};
    const unsigned b[2] = {tf32_big(b0), tf32_big(b1)};
    if constexpr (products == 3) {
        mma_m16n8k8_tf32(sum, tf32_small(a0), tf32_small(a1), tf32_small(a2), tf32_small(a3), b[0], b[1]);
        mma_m16n8k8_tf32(sum, a[0], a[1], a[2], a[3], tf32_small(b0), tf32_small(b1));
    }
    mma_m16n8k8_tf32(sum, a[0], a[1], a[2], a[3], b[0], b[1]);
}
