#pragma once
// Counters in global memory that synchronise blocks. Between two __syncthreads() one thread of a block updates the
// counter with acquire-release order. The block's stores before the first barrier are visible before the update.
// After the second barrier the block can read what other blocks stored before their updates. That costs less than
// __threadfence(). An update returns the counter's previous value. The emulator's versions are in atomics_on_host.h.
#ifndef TSM2_HOST
// Add 1, or reset the counter to 0 if it is `last`.
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

// Add without ordering memory.
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
