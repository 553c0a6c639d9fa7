#pragma once
// Asynchronous copies from global to shared memory: PTX's cp.async, with CUTLASS's names. cp_async_fence commits the
// copies that the thread has started as a group. cp_async_wait waits until at most `pending_groups` groups are in
// flight. Both addresses must be aligned to the size of a copy. Before compute capability 8.0 copies are synchronous.
// The emulator's versions are in async_copy_on_host.h.
#include "vector.cuh"
#ifndef TSM2_HOST
// PTX's cache operators: ca caches in L1 and L2, cg (16 bytes only) in L2 alone. L2_128B prefetches 128 bytes to the
// L2. Two functions issue another operator: cp_async issues ca for cg_L2_128B, and cp_async_if issues ca_L2_128B for ca.
enum class CacheOp { ca, ca_L2_128B, cg_L2_128B };

// Copy `bytes` bytes. Two bytes are copied synchronously, since cp.async moves at least four.
template <int bytes, CacheOp op = CacheOp::ca, class T>
__device__ __forceinline__ void cp_async(T *to, const T *from)
{
#if __CUDA_ARCH__ >= 800
    if constexpr (bytes >= 4 && op == CacheOp::ca_L2_128B)
        asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], %2;" ::
                     "r"(unsigned(__cvta_generic_to_shared(to))), "l"(from), "n"(bytes) : "memory");
    else if constexpr (bytes >= 4)
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::
                     "r"(unsigned(__cvta_generic_to_shared(to))), "l"(from), "n"(bytes) : "memory");
    else
#endif
    {
        using word_t = typename Word<bytes>::type;
        *reinterpret_cast<word_t *>(to) = *reinterpret_cast<const word_t *>(from);
    }
}

// Write `bytes` bytes: copy the first `valid` elements, and fill the rest with zeros. If `valid` is 0, `from` is not
// read.
template <int bytes, CacheOp op = CacheOp::ca, class To, class From>
__device__ __forceinline__ void cp_async_zfill(To *to, const From *from, int valid)
{
#if __CUDA_ARCH__ >= 800
    const unsigned address = unsigned(__cvta_generic_to_shared(to));
    const int valid_bytes = valid * int(sizeof(From));
    if constexpr (op == CacheOp::cg_L2_128B)
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], %2, %3;" ::
                     "r"(address), "l"(from), "n"(bytes), "r"(valid_bytes) : "memory");
    else if constexpr (op == CacheOp::ca_L2_128B)
        asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], %2, %3;" ::
                     "r"(address), "l"(from), "n"(bytes), "r"(valid_bytes) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::
                     "r"(address), "l"(from), "n"(bytes), "r"(valid_bytes) : "memory");
#else
    From *elements = reinterpret_cast<From *>(to);
    if (valid * sizeof(From) == bytes) {
        cp_async<bytes>(elements, from);
    } else {
        for (int e = 0; e < bytes / int(sizeof(From)); ++e)
            elements[e] = e < valid ? from[e] : From();
    }
#endif
}

// If `wanted`, copy 16 bytes, or write zeros if they are not `valid`. Uses a predicate, because the compiler does not
// move arithmetic across a branch.
template <CacheOp op, class T>
__device__ __forceinline__ void cp_async_if(T *to, const T *from, bool wanted, bool valid)
{
#if __CUDA_ARCH__ >= 800
    if constexpr (op == CacheOp::cg_L2_128B)
        asm volatile("{ .reg .pred wanted, left_out; setp.ne.b32 wanted, %2, 0; setp.eq.b32 left_out, %3, 0;"
                     " @wanted cp.async.cg.shared.global.L2::128B [%0], [%1], 16, left_out; }" ::
                     "r"(unsigned(__cvta_generic_to_shared(to))), "l"(from), "r"(int(wanted)), "r"(int(valid))
                     : "memory");
    else
        asm volatile("{ .reg .pred wanted, left_out; setp.ne.b32 wanted, %2, 0; setp.eq.b32 left_out, %3, 0;"
                     " @wanted cp.async.ca.shared.global.L2::128B [%0], [%1], 16, left_out; }" ::
                     "r"(unsigned(__cvta_generic_to_shared(to))), "l"(from), "r"(int(wanted)), "r"(int(valid))
                     : "memory");
#else
    if (wanted)
        cp_async_zfill<16>(to, from, valid ? 16 / int(sizeof(T)) : 0);
#endif
}

__device__ __forceinline__ void cp_async_fence()
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

template <int pending_groups>
__device__ __forceinline__ void cp_async_wait()
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" :: "n"(pending_groups) : "memory");
#endif
}

// Wait for all copies, in a group or not.
__device__ __forceinline__ void cp_async_wait_all()
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}
#endif
