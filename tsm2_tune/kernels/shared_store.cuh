#pragma once
// Store a vector to shared memory in one instruction. The compiler would split a plain store into words. The
// emulator's versions are in cuda_on_host.h.
#ifndef TSM2_HOST
template <class T> __device__ __forceinline__ void st_shared(T *to, unsigned bits)
{
    *reinterpret_cast<unsigned *>(to) = bits;
}
template <class T> __device__ __forceinline__ void st_shared(T *to, uint2 bits)
{
    asm volatile("st.shared.v2.u32 [%0], { %1, %2 };" ::
                 "r"(unsigned(__cvta_generic_to_shared(to))), "r"(bits.x), "r"(bits.y) : "memory");
}
template <class T> __device__ __forceinline__ void st_shared(T *to, uint4 bits)
{
    asm volatile("st.shared.v4.u32 [%0], { %1, %2, %3, %4 };" ::
                 "r"(unsigned(__cvta_generic_to_shared(to))), "r"(bits.x), "r"(bits.y), "r"(bits.z), "r"(bits.w)
                 : "memory");
}
#endif
