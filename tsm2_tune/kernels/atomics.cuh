#pragma once
// Counters in global memory, by which blocks tell one another what they have done. What a block wrote before a
// barrier is in memory before one of its threads counts in acquire and release order; what other blocks wrote before
// they counted can be read after the block's next barrier. One thread's operation serves the block, and is weaker
// than __threadfence(). Each returns what was there before. The host's own are in atomics_on_host.h.
#ifndef TSM2_HOST
// Add 1, or make it 0 where it is `last`.
__device__ __forceinline__ unsigned atomic_inc_acq_rel(unsigned *counter, unsigned last)
{
    unsigned before;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(last) : "memory");
    return before;
}

__device__ __forceinline__ unsigned atomic_add_acq_rel(unsigned *counter, unsigned what)
{
    unsigned before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(what) : "memory");
    return before;
}

// It orders no memory.
__device__ __forceinline__ unsigned atomic_add_relaxed(unsigned *counter, unsigned what)
{
    unsigned before;
    asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(what));
    return before;
}

__device__ __forceinline__ unsigned load_acquire(const unsigned *counter)
{
    unsigned now;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(counter) : "memory");
    return now;
}
#endif
