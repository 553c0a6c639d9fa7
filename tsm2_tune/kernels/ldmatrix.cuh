#pragma once
// Matrices of 8 rows of 16 bytes from shared memory into a warp's registers: PTX's ldmatrix. Lane 8 w + i says where
// row i of matrix w begins, one or more matrices in one load: a lane gets one word of each. The host's own are in
// ldmatrix_on_host.h.
#ifndef TSM2_HOST
// Lane 4 g + t gets the t-th word of row g.
template <class T>
__device__ __forceinline__ void ldmatrix(uint4 &to, const T *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 { %0, %1, %2, %3 }, [%4];"
                 : "=r"(to.x), "=r"(to.y), "=r"(to.z), "=r"(to.w)
                 : "r"(unsigned(__cvta_generic_to_shared(row))) : "memory");
}

// Of 16-bit elements, lane 4 g + t gets elements g of rows 2 t and 2 t + 1: the matrix is transposed.
template <class T>
__device__ __forceinline__ void ldmatrix_trans(unsigned &to, const T *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 { %0 }, [%1];"
                 : "=r"(to) : "r"(unsigned(__cvta_generic_to_shared(row))) : "memory");
}

template <class T>
__device__ __forceinline__ void ldmatrix_trans(uint2 &to, const T *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 { %0, %1 }, [%2];"
                 : "=r"(to.x), "=r"(to.y) : "r"(unsigned(__cvta_generic_to_shared(row))) : "memory");
}

template <class T>
__device__ __forceinline__ void ldmatrix_trans(uint4 &to, const T *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 { %0, %1, %2, %3 }, [%4];"
                 : "=r"(to.x), "=r"(to.y), "=r"(to.z), "=r"(to.w)
                 : "r"(unsigned(__cvta_generic_to_shared(row))) : "memory");
}

// An 8 x 8 matrix of 16-bit elements in registers, of which lane 4 g + t has columns 2 t and 2 t + 1 of row g,
// transposed: PTX's movmatrix.
__device__ __forceinline__ unsigned movmatrix_trans(unsigned bits)
{
    unsigned transposed;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(bits));
    return transposed;
}
#endif
