#pragma once
// The minimum of the semiring (min, +). A candidate that is NaN is ignored, and `least` is never NaN. The emulator's
// version is in cuda_on_host.h.
#ifndef TSM2_HOST
__device__ __forceinline__ float min_ignoring_nan(float least, float candidate) { return fminf(least, candidate); }
// A comparison takes three instructions, fmin six.
__device__ __forceinline__ double min_ignoring_nan(double least, double candidate)
{
    return candidate < least ? candidate : least;
}
#endif
