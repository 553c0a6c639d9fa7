#pragma once
// Tensor core products sum += a b of f64 matrices: PTX's mma.sync, named by shape. g = lane / 4 and t = lane % 4.
// The emulator's versions are in mma_on_host.h.
#ifndef TSM2_HOST
// Multiply a (16 x 8) by b (8 x 8). A lane holds rows g and g + 8 of columns t (a[0], a[1]) and t + 4 (a[2], a[3]) of
// a, rows t and t + 4 of column g of b, and columns 2 t and 2 t + 1 of rows g (sum[0], sum[1]) and g + 8 of the sum.
__device__ __forceinline__ void mma_m16n8k8(double (&sum)[4], const double (&a)[4], const double (&b)[2])
{
    asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64"
        " { %0, %1, %2, %3 }, { %4, %5, %6, %7 }, { %8, %9 }, { %0, %1, %2, %3 };"
        : "+d"(sum[0]), "+d"(sum[1]), "+d"(sum[2]), "+d"(sum[3])
        : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]));
}

// Multiply a (16 x 16) by b (16 x 8). A lane holds rows g and g + 8 of columns t (a[0], a[1]), t + 4 (a[2], a[3]), t
// + 8 and t + 12 of a, and rows t, t + 4, t + 8 and t + 12 of column g of b. The sum's layout is that of m16n8k8.
__device__ __forceinline__ void mma_m16n8k16(double (&sum)[4], const double (&a)[8], const double (&b)[4])
{
    asm("mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64"
        " { %0, %1, %2, %3 }, { %4, %5, %6, %7, %8, %9, %10, %11 }, { %12, %13, %14, %15 }, { %0, %1, %2, %3 };"
        : "+d"(sum[0]), "+d"(sum[1]), "+d"(sum[2]), "+d"(sum[3])
        : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(a[4]), "d"(a[5]), "d"(a[6]), "d"(a[7]),
          "d"(b[0]), "d"(b[1]), "d"(b[2]), "d"(b[3]));
}

// Multiply a (8 x 8) by b (8 x 8) with two mma instructions. A lane holds columns t (a[0]) and t + 4 (a[1]) of row g
// of a, rows t (b[0]) and t + 4 (b[1]) of column g of b, and columns 2 t and 2 t + 1 of row g of the sum.
__device__ __forceinline__ void mma_m8n8k4_twice(double (&sum)[2], const double (&a)[2], const double (&b)[2])
{
    #pragma unroll
    for (int half = 0; half < 2; ++half) {
        asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 { %0, %1 }, { %2 }, { %3 }, { %0, %1 };"
            : "+d"(sum[0]), "+d"(sum[1]) : "d"(a[half]), "d"(b[half]));
    }
}
#endif
