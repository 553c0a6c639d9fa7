#pragma once
// How many chains of arithmetic, each waiting for its own results alone, a thread needs to measure the rate; and the
// chain whose least the second term of another one's is, so that no term is the first's. The host's own are in
// chains_on_host.h.
#ifndef TSM2_HOST
constexpr int FMA_CHAINS = 8;
__device__ constexpr int other_chain(int chain) { return (chain + 1) % FMA_CHAINS; }
#endif
