// The emulator's kernels/fma_chains.cuh. With independent chains the compiler makes vectors, of which it needs several
// to hide the latency.
#pragma once

constexpr int FMA_CHAINS = 64;
constexpr int other_chain(int chain) { return chain; }
