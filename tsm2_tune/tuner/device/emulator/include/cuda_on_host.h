// CUDA C++ on the host: included before a kernel's text, it lets the system's C++ compiler take that text as
// it stands. Here are the words of the language; emulation.h runs it.
//
// What it covers is what this project's kernels use: one-dimensional grids, barriers, warp shuffles, vector
// types, cache hints, and dynamic shared memory declared as
//     extern __shared__ __align__(16) unsigned char shared_bytes[];
// A text that includes a standard header must do without the macro __noinline__, which those use too.
#pragma once

#include "atomics_on_host.h"
#include "c_library.h"
#include "fma_chains_on_host.h"
#include "async_copy_on_host.h"
#include "launch.h"
#ifndef TSM2_HOST_LINKED
#include "emulation.h"
#endif

#define TSM2_HOST 1  // for text that must know

#define __global__
#define __device__
#define __host__
#define __constant__
#define __shared__  // a static one is made `static` by host_text, as it must be one for all threads
#define __launch_bounds__(...)  // enforced when launching
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(bytes) __attribute__((aligned(bytes)))

constexpr int warpSize = tsm2_host::warp_threads;

// Vector types, aligned as CUDA aligns them.
#define TSM2_HOST_VECTORS(name, scalar)                                                          \
    struct name##1 { scalar x; };                                                                \
    struct alignas(2 * sizeof(scalar)) name##2 { scalar x, y; };                                 \
    struct name##3 { scalar x, y, z; };                                                          \
    struct alignas(4 * sizeof(scalar) < 16 ? 4 * sizeof(scalar) : 16) name##4 { scalar x, y, z, w; }; \
    inline name##1 make_##name##1(scalar x) { return {x}; }                                      \
    inline name##2 make_##name##2(scalar x, scalar y) { return {x, y}; }                         \
    inline name##3 make_##name##3(scalar x, scalar y, scalar z) { return {x, y, z}; }            \
    inline name##4 make_##name##4(scalar x, scalar y, scalar z, scalar w) { return {x, y, z, w}; }
TSM2_HOST_VECTORS(float, float)
TSM2_HOST_VECTORS(double, double)
TSM2_HOST_VECTORS(int, int)
TSM2_HOST_VECTORS(longlong, long long)
TSM2_HOST_VECTORS(ulonglong, unsigned long long)
#define uint3 tsm2_host_uint3  // defined already, for threadIdx
TSM2_HOST_VECTORS(uint, unsigned)
#undef uint3

// Barriers. The line tells one barrier from another; it is that of the call.
inline void __syncthreads(int line = __builtin_LINE())
{
    tsm2_host::wait_at_barrier(line);
}

// A barrier that tells every thread of the block whether the predicate holds for any of them.
inline int __syncthreads_or(int predicate, int line = __builtin_LINE())
{
    static int any;
    any = 0;
    __syncthreads(line);
    any |= predicate != 0;
    __syncthreads(line);
    const int found = any;
    __syncthreads(line);
    return found;
}

// `orders` memory but where it stands for an operation of the warp that does not.
inline void __syncwarp(unsigned mask = 0xFFFFFFFFu, int line = __builtin_LINE(), bool orders = true)
{
    tsm2_host::wait_for_warp(mask, tsm2_host::running % tsm2_host::warp_threads, line, orders);
}

namespace tsm2_host {

// Lanes meet in an operation of the warp, such as a product of tensor cores, that orders no memory.
inline void sync_lanes(int line = __builtin_LINE())
{
    __syncwarp(0xFFFFFFFFu, line, false);
}

}  // namespace tsm2_host

#include "ldmatrix_on_host.h"
#include "mma_on_host.h"
#include "wgmma_on_host.h"

// One thread of the operating system runs every block: writes are seen in the order they are made.
inline void __threadfence_block() {}
inline void __threadfence() {}

// Warp shuffles.
namespace tsm2_host {

template <class T> T shuffled(unsigned mask, T value, unsigned source, int line)
{
    static_assert(sizeof(T) <= sizeof(uint64_t), "a shuffle moves at most 8 bytes");
    Thread &self = threads[running];
    memcpy(&self.value, &value, sizeof value);
    wait_for_warp(mask, source, line);
    memcpy(&value, &self.result, sizeof value);
    return value;
}

}  // namespace tsm2_host

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = warpSize, int line = __builtin_LINE())
{
    const unsigned first = threadIdx.x % warpSize & ~(width - 1u);
    return tsm2_host::shuffled(mask, value, first + (source & (width - 1u)), line);
}

template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = warpSize, int line = __builtin_LINE())
{
    const unsigned lane = threadIdx.x % warpSize, in_segment = lane & (width - 1u);
    return tsm2_host::shuffled(mask, value, delta <= in_segment ? lane - delta : lane, line);
}

template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = warpSize, int line = __builtin_LINE())
{
    const unsigned lane = threadIdx.x % warpSize, in_segment = lane & (width - 1u);
    return tsm2_host::shuffled(mask, value, delta < width - in_segment ? lane + delta : lane, line);
}

template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = warpSize, int line = __builtin_LINE())
{
    const unsigned lane = threadIdx.x % warpSize, other = lane ^ lane_mask;
    return tsm2_host::shuffled(mask, value, other < (lane & ~(width - 1u)) + width ? other : lane, line);
}

// What any lane's value has set; every lane of the warp must take part.
inline unsigned __reduce_or_sync(unsigned mask, unsigned value, int line = __builtin_LINE())
{
    for (int lanes = 1; lanes < warpSize; lanes *= 2)
        value |= __shfl_xor_sync(mask, value, lanes, warpSize, line);
    return value;
}

namespace tsm2_host {

// A GPU faults where a load or store is not aligned to its own size; an x86 lets it pass.
template <class T> inline T *aligned(T *at)
{
    if (reinterpret_cast<unsigned long long>(at) % sizeof(T) != 0)
        __builtin_trap();
    return at;
}

}  // namespace tsm2_host

// Loads and stores with a cache hint.
template <class T> inline T __ldg(const T *from) { return *tsm2_host::aligned(from); }
template <class T> inline T __ldca(const T *from) { return *tsm2_host::aligned(from); }
template <class T> inline T __ldcg(const T *from) { return *tsm2_host::aligned(from); }
template <class T> inline T __ldcs(const T *from) { return *tsm2_host::aligned(from); }
template <class T> inline void __stcg(T *to, T value)
{
    tsm2_host::store_for_blocks();
    *tsm2_host::aligned(to) = value;
}
template <class T> inline void __stcs(T *to, T value) { __stcg(to, value); }
template <class T> inline void __stwt(T *to, T value) { __stcg(to, value); }

// A vector into shared memory, as kernels/shared_store.cuh has it.
template <class T, class Bits> inline void st_shared(T *to, Bits bits)
{
    *tsm2_host::aligned(reinterpret_cast<Bits *>(to)) = bits;
}

// Of kernels/optimization_barrier.cuh: a host compiler needs none.
inline int optimization_barrier(int value) { return value; }

// Atomics: each returns what was there before.
template <class T> struct tsm2_host_same { using type = T; };  // T is deduced from the pointer alone
template <class T> using tsm2_host_value = typename tsm2_host_same<T>::type;
template <class T> inline T tsm2_host_replace(T *at, T value)
{
    const T before = *at;
    *at = value;
    return before;
}
template <class T> inline T atomicAdd(T *at, tsm2_host_value<T> value)
{
    return tsm2_host_replace<T>(at, *at + value);
}
template <class T> inline T atomicExch(T *at, tsm2_host_value<T> value)
{
    return tsm2_host_replace<T>(at, value);
}
template <class T> inline T atomicMin(T *at, tsm2_host_value<T> value)
{
    return tsm2_host_replace<T>(at, value < *at ? value : *at);
}
template <class T> inline T atomicMax(T *at, tsm2_host_value<T> value)
{
    return tsm2_host_replace<T>(at, value > *at ? value : *at);
}
template <class T> inline T atomicCAS(T *at, tsm2_host_value<T> expected, tsm2_host_value<T> value)
{
    return tsm2_host_replace<T>(at, *at == expected ? value : *at);
}

// min and max, for the pairs of types that CUDA has them for.
#define TSM2_HOST_MIN_MAX(T, left, right)                                       \
    inline T min(left a, right b) { return T(a) < T(b) ? T(a) : T(b); }         \
    inline T max(left a, right b) { return T(a) > T(b) ? T(a) : T(b); }
#define TSM2_HOST_MIN_MAX_INTEGERS(T, unsigned_T)    \
    TSM2_HOST_MIN_MAX(T, T, T)                       \
    TSM2_HOST_MIN_MAX(unsigned_T, unsigned_T, unsigned_T) \
    TSM2_HOST_MIN_MAX(unsigned_T, unsigned_T, T)     \
    TSM2_HOST_MIN_MAX(unsigned_T, T, unsigned_T)
namespace tsm2_host {
using ulong = unsigned long;
using longlong = long long;
using ulonglong = unsigned long long;
}  // namespace tsm2_host
TSM2_HOST_MIN_MAX_INTEGERS(int, unsigned)
TSM2_HOST_MIN_MAX_INTEGERS(long, tsm2_host::ulong)
TSM2_HOST_MIN_MAX_INTEGERS(tsm2_host::longlong, tsm2_host::ulonglong)
inline float min(float a, float b) { return fminf(a, b); }  // of a number and a NaN: the number
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }

// Of kernels/min_plus.cuh: fmin would be a call.
template <class T> inline T min_ignoring_nan(T least, T candidate)
{
    return candidate < least ? candidate : least;
}

// Arithmetic that must be rounded where it stands: the empty asm keeps the compiler from fusing it.
#if defined(__x86_64__)
#define TSM2_HOST_ROUNDED(value) asm("" : "+x"(value))
#elif defined(__aarch64__)
#define TSM2_HOST_ROUNDED(value) asm("" : "+w"(value))
#else
#define TSM2_HOST_ROUNDED(value) asm("" : "+m"(value))
#endif
#define TSM2_HOST_OPERATION(name, scalar, operation) \
    inline scalar name(scalar a, scalar b)           \
    {                                                \
        scalar rounded = a operation b;              \
        TSM2_HOST_ROUNDED(rounded);                  \
        return rounded;                              \
    }
TSM2_HOST_OPERATION(__fadd_rn, float, +)
TSM2_HOST_OPERATION(__fsub_rn, float, -)
TSM2_HOST_OPERATION(__fmul_rn, float, *)
TSM2_HOST_OPERATION(__fdiv_rn, float, /)
TSM2_HOST_OPERATION(__dadd_rn, double, +)
TSM2_HOST_OPERATION(__dsub_rn, double, -)
TSM2_HOST_OPERATION(__dmul_rn, double, *)
TSM2_HOST_OPERATION(__ddiv_rn, double, /)
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }

// Bits as another type.
#define TSM2_HOST_BITS(name, from, to)                                               \
    inline to name(from value)                                                       \
    {                                                                                \
        static_assert(sizeof(from) == sizeof(to), "both types have the same size"); \
        to bits;                                                                     \
        memcpy(&bits, &value, sizeof bits);                                          \
        return bits;                                                                 \
    }
TSM2_HOST_BITS(__float_as_int, float, int)
TSM2_HOST_BITS(__float_as_uint, float, unsigned)
TSM2_HOST_BITS(__int_as_float, int, float)
TSM2_HOST_BITS(__uint_as_float, unsigned, float)
TSM2_HOST_BITS(__double_as_longlong, double, long long)
TSM2_HOST_BITS(__longlong_as_double, long long, double)

#include "float16_on_host.h"

// Four of the eight bytes of (high, low), each chosen by the lowest three bits of one hexadecimal digit.
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector)
{
    const unsigned long long bytes = (unsigned long long)high << 32 | low;
    unsigned chosen = 0;
    for (int b = 0; b < 4; ++b)
        chosen |= unsigned(bytes >> (selector >> 4 * b & 7) * 8 & 0xFF) << 8 * b;
    return chosen;
}

// End the kernel with a fault.
[[noreturn]] inline void __trap()
{
    __builtin_trap();
}
