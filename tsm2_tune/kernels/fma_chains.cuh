#pragma once
// Dependent chains of arithmetic that a thread runs at once to measure an instruction's rate. In the min-plus probe a
// chain's second term is another chain's minimum, so that the compiler cannot fold the two terms. The emulator's
// version is in fma_chains_on_host.h.
#ifndef TSM2_HOST
constexpr int FMA_CHAINS = 8;
__device__ constexpr int other_chain(int chain) { return (chain + 1) % FMA_CHAINS; }
#endif
