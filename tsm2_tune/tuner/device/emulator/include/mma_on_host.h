// The emulator's kernels/mma/mma_{f64,16bit,tf32}.cuh: the lanes of a warp exchange their fragments.
#pragma once

#include "block.h"
#include "c_library.h"

// Unroll a short loop at any level of optimisation.
#ifdef __clang__
#define TSM2_HOST_UNROLL _Pragma("clang loop unroll(full)")
#else
#define TSM2_HOST_UNROLL _Pragma("GCC unroll 16")
#endif

namespace tsm2_host {

// sum += a b: a lane holds `of_a` elements of the first and `of_b` of the second, every fourth along k, and of the sum
// two neighbours in each of `rows` rows.
template <int of_a, int of_b, int rows>
inline void multiply_fragments(double (&sum)[2 * rows], const double (&a)[of_a], const double (&b)[of_b], int line)
{
    constexpr int width = of_a + of_b;
    static double lanes[2][most_threads * width];
    double *all = lanes[exchange_slot()], *own = all + threadIdx.x * width;
    memcpy(own, a, sizeof a);
    memcpy(own + of_a, b, sizeof b);
    sync_lanes(line);
    const int lane = threadIdx.x % 32, first = threadIdx.x - lane;
    const double *of_rows = all + (first + lane / 4 * 4) * width;
    const double *of_columns = all + (first + lane % 4 * 8) * width + of_a;
    TSM2_HOST_UNROLL
    for (int e = 0; e < 2 * rows; ++e) {
        double total = sum[e];
        TSM2_HOST_UNROLL
        for (int l = 0; l < 4 * of_b; ++l)
            total = fma(of_rows[l % 4 * width + e / 2 + l / 4 * rows],
                        of_columns[(e % 2 * 4 + l % 4) * width + l / 4], total);
        sum[e] = total;
    }
}

// The same of floats, in the order in which a lane holds them: of the first `of_a` / 2 elements of row g, then as many
// of row g + 8; of the second `of_a` / 2. `together` of them are neighbours along k.
template <int of_a, int together>
inline void multiply_fragments(float (&sum)[4], const float (&a)[of_a], const float (&b)[of_a / 2], int line)
{
    constexpr int of_b = of_a / 2, width = of_a + of_b;
    static float lanes[2][most_threads * width];
    float *all = lanes[exchange_slot()], *own = all + threadIdx.x * width;
    memcpy(own, a, sizeof a);
    memcpy(own + of_a, b, sizeof b);
    sync_lanes(line);
    const int lane = threadIdx.x % 32, first = threadIdx.x - lane;
    const float *of_rows = all + (first + lane / 4 * 4) * width;
    const float *of_columns = all + (first + lane % 4 * 8) * width + of_a;
    TSM2_HOST_UNROLL
    for (int e = 0; e < 4; ++e) {
        float total = sum[e];
        TSM2_HOST_UNROLL
        for (int l = 0; l < 4 * of_b; ++l) {
            const int t = l / together % 4, at = l / (4 * together) * together + l % together;
            total = fmaf(of_rows[t * width + e / 2 * of_b + at], of_columns[(e % 2 * 4 + t) * width + at], total);
        }
        sum[e] = total;
    }
}

template <class T> inline float lower_half(unsigned bits)
{
    T element;
    memcpy(&element, &bits, sizeof element);
    return float(element);
}
template <class T> inline float upper_half(unsigned bits) { return lower_half<T>(bits >> 16); }

inline float as_tf32(unsigned bits)
{
    bits &= 0xFFFFE000u;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

}  // namespace tsm2_host

inline void mma_m16n8k8(
    double (&sum)[4], const double (&a)[4], const double (&b)[2], int line = __builtin_LINE())
{
    tsm2_host::multiply_fragments<4, 2, 2>(sum, a, b, line);
}
inline void mma_m16n8k16(
    double (&sum)[4], const double (&a)[8], const double (&b)[4], int line = __builtin_LINE())
{
    tsm2_host::multiply_fragments<8, 4, 2>(sum, a, b, line);
}
inline void mma_m8n8k4_twice(
    double (&sum)[2], const double (&a)[2], const double (&b)[2], int line = __builtin_LINE())
{
    tsm2_host::multiply_fragments<2, 2, 1>(sum, a, b, line);
}

template <class T>
inline void mma_m16n8k16(float (&sum)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1,
                         int line = __builtin_LINE())
{
    using namespace tsm2_host;
    const float a[8] = {lower_half<T>(a0), upper_half<T>(a0), lower_half<T>(a2), upper_half<T>(a2),
                        lower_half<T>(a1), upper_half<T>(a1), lower_half<T>(a3), upper_half<T>(a3)};
    const float b[4] = {lower_half<T>(b0), upper_half<T>(b0), lower_half<T>(b1), upper_half<T>(b1)};
    multiply_fragments<8, 2>(sum, a, b, line);
}
template <class T>
inline void mma_m16n8k8(float (&sum)[4], unsigned a0, unsigned a1, unsigned b0, int line = __builtin_LINE())
{
    using namespace tsm2_host;
    const float a[4] = {lower_half<T>(a0), upper_half<T>(a0), lower_half<T>(a1), upper_half<T>(a1)};
    const float b[2] = {lower_half<T>(b0), upper_half<T>(b0)};
    multiply_fragments<4, 2>(sum, a, b, line);
}
inline void mma_m16n8k8_tf32(float (&sum)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0,
                             unsigned b1, int line = __builtin_LINE())
{
    using namespace tsm2_host;
    const float a[4] = {as_tf32(a0), as_tf32(a2), as_tf32(a1), as_tf32(a3)}, b[2] = {as_tf32(b0), as_tf32(b1)};
    multiply_fragments<4, 1>(sum, a, b, line);
}

inline unsigned tf32_big(unsigned bits)
{
    return (bits & 0x7F800000u) == 0x7F800000u ? bits : (bits + 0x1000u) & 0xFFFFE000u;
}
