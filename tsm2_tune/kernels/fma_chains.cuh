#pragma once
// Independent chains of dependent instructions. A thread interleaves them to measure an instruction's rate. In the
// min-plus probe the second term of a chain is another chain's minimum, so that the compiler cannot fold the two
// terms. The emulator's version is in fma_chains_on_host.h.
#ifndef TSM2_HOST
constexpr int FMA_CHAINS = 8;
__device__ constexpr int other_chain(int chain) { return (chain + 1) % FMA_CHAINS; }
#endif
