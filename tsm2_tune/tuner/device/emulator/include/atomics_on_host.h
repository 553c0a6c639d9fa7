// The emulator's kernels/atomics.cuh. Blocks run one after another.
#pragma once

#include "races.h"

inline unsigned atomic_inc_acq_rel(unsigned *counter, unsigned last)
{
    tsm2_host::count_block();
    const unsigned before = *counter;
    *counter = before < last ? before + 1 : 0;
    return before;
}
inline unsigned atomic_add_relaxed(unsigned *counter, unsigned what)
{
    const unsigned before = *counter;
    *counter += what;
    return before;
}
inline unsigned atomic_add_acq_rel(unsigned *counter, unsigned what)
{
    tsm2_host::count_block();
    return atomic_add_relaxed(counter, what);
}
inline unsigned load_acquire(const unsigned *counter) { return *counter; }

// The clock leaps between two reads, so that a wait for other blocks times out: none of them runs meanwhile.
inline long long clock64()
{
    static long long cycles = 0;
    return cycles += 1LL << 32;
}
