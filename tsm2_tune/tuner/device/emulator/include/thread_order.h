// The order in which the threads of a block are resumed.
#pragma once

#include "block.h"

namespace tsm2_host {

// For each block another rotation of the launch's permutation, forwards or backwards. Seed 0 is 0, 1, 2, ... In some
// blocks a warp goes on as far as it can before another does: else the operations of warps, at which all threads are
// resumed in turn, hide that a barrier is missing.
struct Order {
    unsigned permutation[most_threads], sequence[most_threads], count, random;
    unsigned groups, group_end[most_threads / warp_threads];  // of the threads that go on as far as they can

    unsigned next()
    {
        random ^= random << 13;  // Marsaglia's xorshift; stays 0 for seed 0
        random ^= random >> 17;
        return random ^= random << 5;
    }

    void shuffle(unsigned threads, unsigned seed)
    {
        count = threads;
        random = seed * 2654435769u;  // odd, so only seed 0 gives 0; spreads small seeds over the word
        for (unsigned t = 0; t < count; ++t)
            permutation[t] = sequence[t] = t;
        for (unsigned t = count; random && t > 1; --t) {
            const unsigned other = next() % t, thread = permutation[t - 1];
            permutation[t - 1] = permutation[other];
            permutation[other] = thread;
        }
        groups = 1;
        group_end[0] = count;
    }

    void turn()
    {
        if (random == 0)
            return;
        const unsigned first = next() % count, bits = next();
        const bool backwards = bits & 1, by_warps = bits & 2;
        const unsigned warps = (count + warp_threads - 1) / warp_threads;
        unsigned place[most_threads / warp_threads] = {};  // of the next thread of a warp
        groups = by_warps ? warps : 1;
        group_end[0] = count;
        const unsigned first_warp = permutation[backwards ? count - 1 - first : first] / warp_threads;
        for (unsigned g = 0, begin = 0; by_warps && g < warps; begin = group_end[g++]) {
            const unsigned warp = (first_warp + (backwards ? warps - g : g)) % warps;
            place[warp] = begin;
            group_end[g] = begin + (warp + 1 < warps ? warp_threads : count - warp * warp_threads);
        }
        for (unsigned step = 0; step < count; ++step) {
            const unsigned at = first + step < count ? first + step : first + step - count;
            const unsigned thread = permutation[backwards ? count - 1 - at : at];
            sequence[by_warps ? place[thread / warp_threads]++ : step] = thread;
        }
    }
};

}  // namespace tsm2_host
