#pragma once
// Load matrices of 8 rows of 16 bytes from shared memory into a warp's registers: PTX's ldmatrix. Lane 8 w + i
// passes the address of row i of matrix w. A lane gets one 32-bit word of each matrix. The emulator's versions are in
// ldmatrix_on_host.h.
#ifndef TSM2_HOST
// Lane 4 g + t gets word t of row g.
template <class T>
__device__ __forceinline__ void ldmatrix(uint4 &to, const T *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 { %0, %1, %2, %3 }, [%4];"
                 : "=r"(to.x), "=r"(to.y), "=r"(to.z), "=r"(to.w)
                 : "r"(unsigned(__cvta_generic_to_shared(row))) : "memory");
}

// Load transposed matrices of 16-bit elements: lane 4 g + t gets element g of rows 2 t and 2 t + 1.
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

// Transpose an 8 x 8 matrix of 16-bit elements in registers: PTX's movmatrix. Lane 4 g + t holds columns 2 t and
// 2 t + 1 of row g.
__device__ __forceinline__ unsigned movmatrix_trans(unsigned bits)
{
    unsigned transposed;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(bits));
    return transposed;
}
#endif
