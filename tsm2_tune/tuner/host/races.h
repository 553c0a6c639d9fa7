// Races in shared memory: an access of one thread to what another one wrote, or a write to what another one read, with
// no barrier of the two between them; and of blocks: what a block leaves for others and tells them of. However threads
// are ordered when they are emulated, a GPU may order them the other way. Told where a text is compiled for it: then the compiler calls a function here before each access.
//
// A barrier of the block orders all of its threads, __syncwarp those of a warp. A shuffle or a product of tensor cores
// orders none, though lanes meet at it. What is told is a race; not all are: of several readers that of another warp,
// or those of the last warp, are remembered; and a __syncwarp of some lanes counts as one of all.
#pragma once

#include "block.h"

#ifdef TSM2_HOST_RACES
#ifdef __clang__
#define TSM2_HOST_UNWATCHED __attribute__((disable_sanitizer_instrumentation))
#else
#define TSM2_HOST_UNWATCHED __attribute__((no_sanitize("thread")))
#endif

namespace tsm2_host {

constexpr unsigned granule_bytes = 2;  // no element has fewer

// Who touched some bytes last. Times of the block are never 0 and never come again.
struct Touched {
    unsigned written_at, written_at_of_warp;  // time of the block, and of the writer's warp
    unsigned read_at, read_at_of_warp;
    unsigned reading_warps, reading_lanes;  // sets; of the last of these warps the lanes
    unsigned short writer, last_reader;
};
static Touched touched[TSM2_HOST_SHARED_BYTES / granule_bytes];

// When each thread last stored something past the L1, as it does for other blocks; when and by whom the block was counted.
static unsigned stored_at[most_threads], counted_at, counting;

[[noreturn]] TSM2_HOST_UNWATCHED static void fail_uncounted(unsigned storing)
{
    in_kernel = false;
    Fault fault = {};
    fault.kind = counted_early;
    fault.other = storing;
    fail(fault);
}

TSM2_HOST_UNWATCHED static void store_for_blocks()
{
    if (counted_at == block_time && counting != running)
        fail_uncounted(running);
    stored_at[running] = block_time;
}

// One thread tells other blocks that all of its block have stored what these wait for.
TSM2_HOST_UNWATCHED static void count_block()
{
    for (unsigned t = 0; t < launch->threads; ++t)
        if (stored_at[t] == block_time && t != running)
            fail_uncounted(t);
    counted_at = block_time;
    counting = running;
}

[[noreturn]] TSM2_HOST_UNWATCHED __attribute__((noinline)) static void fail_race(
    unsigned other, bool writes, bool other_wrote, uint64_t byte)
{
    in_kernel = false;
    Fault fault = {};
    fault.kind = race;
    fault.other = other;
    fault.state = writes;
    fault.other_state = other_wrote;
    fault.address = byte;
    fail(fault);
}

TSM2_HOST_UNWATCHED static void touch(const void *from, size_t bytes, bool writes)
{
    const uint64_t first = reinterpret_cast<uint64_t>(from) - reinterpret_cast<uint64_t>(shared_bytes);
    if (!in_kernel || first >= TSM2_HOST_SHARED_BYTES)
        return;
    const unsigned warp = running / warp_threads, lane = 1u << running % warp_threads, now_of_warp = warp_time[warp];
    for (uint64_t byte = first; byte < first + bytes && byte < TSM2_HOST_SHARED_BYTES; byte += granule_bytes) {
        Touched &here = touched[byte / granule_bytes];
        const bool same_warp = here.writer / warp_threads == warp;
        if (here.written_at == block_time && here.writer != running
            && (!same_warp || here.written_at_of_warp == now_of_warp))
            fail_race(here.writer, writes, true, byte);
        if (writes) {
            if (here.read_at == block_time) {
                const bool are_lanes = here.last_reader / warp_threads == warp && here.read_at_of_warp == now_of_warp;
                const unsigned lanes = are_lanes ? here.reading_lanes & ~lane : 0, warps = here.reading_warps & ~(1u << warp);
                if (lanes != 0)
                    fail_race(warp * warp_threads + __builtin_ctz(lanes), true, false, byte);
                if (warps != 0)
                    fail_race(__builtin_ctz(warps) * warp_threads, true, false, byte);
            }
            here.written_at = block_time;
            here.written_at_of_warp = now_of_warp;
            here.writer = running;
            continue;
        }
        if (here.read_at != block_time)
            here.reading_warps = 0;
        if (here.read_at != block_time || here.last_reader / warp_threads != warp || here.read_at_of_warp != now_of_warp)
            here.reading_lanes = 0;
        here.read_at = block_time;
        here.read_at_of_warp = now_of_warp;
        here.reading_warps |= 1u << warp;
        here.last_reader = running;
        here.reading_lanes |= lane;
    }
}

}  // namespace tsm2_host

// What a compiler calls, in the place of its own library for races between threads.
#define TSM2_HOST_ACCESS(suffix, bytes)                                                                        \
    TSM2_HOST_UNWATCHED void __tsan_read##suffix(void *at) { tsm2_host::touch(at, bytes, false); }             \
    TSM2_HOST_UNWATCHED void __tsan_write##suffix(void *at) { tsm2_host::touch(at, bytes, true); }
#define TSM2_HOST_UNALIGNED_ACCESS(suffix, bytes)                                                              \
    TSM2_HOST_UNWATCHED void __tsan_unaligned_read##suffix(void *at) { tsm2_host::touch(at, bytes, false); }   \
    TSM2_HOST_UNWATCHED void __tsan_unaligned_write##suffix(void *at) { tsm2_host::touch(at, bytes, true); }
extern "C" {
#pragma GCC visibility push(hidden)
TSM2_HOST_ACCESS(1, 1)
TSM2_HOST_ACCESS(2, 2)
TSM2_HOST_ACCESS(4, 4)
TSM2_HOST_ACCESS(8, 8)
TSM2_HOST_ACCESS(16, 16)
TSM2_HOST_UNALIGNED_ACCESS(2, 2)
TSM2_HOST_UNALIGNED_ACCESS(4, 4)
TSM2_HOST_UNALIGNED_ACCESS(8, 8)
TSM2_HOST_UNALIGNED_ACCESS(16, 16)
TSM2_HOST_UNWATCHED void __tsan_read_range(void *at, unsigned long bytes) { tsm2_host::touch(at, bytes, false); }
TSM2_HOST_UNWATCHED void __tsan_write_range(void *at, unsigned long bytes) { tsm2_host::touch(at, bytes, true); }
TSM2_HOST_UNWATCHED void *__tsan_memset(void *to, int byte, unsigned long bytes)
{
    tsm2_host::touch(to, bytes, true);
    return __builtin_memset(to, byte, bytes);
}
TSM2_HOST_UNWATCHED void *__tsan_memcpy(void *to, const void *from, unsigned long bytes)
{
    tsm2_host::touch(from, bytes, false);
    tsm2_host::touch(to, bytes, true);
    return __builtin_memcpy(to, from, bytes);
}
TSM2_HOST_UNWATCHED void *__tsan_memmove(void *to, const void *from, unsigned long bytes)
{
    tsm2_host::touch(from, bytes, false);
    tsm2_host::touch(to, bytes, true);
    return __builtin_memmove(to, from, bytes);
}
TSM2_HOST_UNWATCHED void __tsan_vptr_update(void *, void *) {}
TSM2_HOST_UNWATCHED void __tsan_vptr_read(void *) {}
TSM2_HOST_UNWATCHED void __tsan_init() {}
TSM2_HOST_UNWATCHED void __tsan_func_entry(void *) {}
TSM2_HOST_UNWATCHED void __tsan_func_exit(void *) {}
#pragma GCC visibility pop
}
#else
namespace tsm2_host {

inline void touch(const void *, size_t, bool) {}
inline void store_for_blocks() {}
inline void count_block() {}

}  // namespace tsm2_host
#endif
