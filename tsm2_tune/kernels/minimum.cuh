#pragma once
// The less of two lengths. A NaN is no length: `least` never is one, and stays where the other is. The host's own is in
// cuda_on_host.h.
#ifndef TSM2_HOST
__device__ __forceinline__ float lesser(float least, float length) { return fminf(least, length); }
// fmin would take six instructions, and not three.
__device__ __forceinline__ double lesser(double least, double length) { return length < least ? length : least; }
#endif
