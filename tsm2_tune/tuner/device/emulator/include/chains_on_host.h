// Chains of arithmetic, as kernels/chains.cuh has them: of which the compiler makes vectors, several for the latency of
// each, as long as they are apart.
#pragma once

constexpr int FMA_CHAINS = 64;
constexpr int other_chain(int chain) { return chain; }
