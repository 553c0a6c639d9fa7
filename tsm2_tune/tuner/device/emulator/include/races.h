// Races in shared memory: an access of one thread to what another one wrote, or a write to what another one read, with
// no barrier of the two between them; and of blocks: what a block leaves for others and tells them of. However threads
// are ordered when they are emulated, a GPU may order them the other way. Told where a text is compiled for it: then the
// compiler calls a function here before each access.
//
// A barrier of the block orders all of its threads, __syncwarp those of a warp. A shuffle or a product of tensor cores
// orders none, though lanes meet at it. What is told is a race; not all are: of several readers that of another warp,
// or those of the last warp, are remembered; and a __syncwarp of some lanes counts as one of all. Threads may write the
// same value to a variable: only where it changes is that told.
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
// Of the dynamic shared array, and then of variables that a text declares.
constexpr unsigned most_variables = 16, most_variable_bytes = 4096;
static Touched touched[(TSM2_HOST_SHARED_BYTES + most_variable_bytes) / granule_bytes];
struct Variable { uint64_t address, bytes, place; };
static Variable variables[most_variables];
static unsigned variable_count;

// When each thread last stored something past the L1, as it does for other blocks; when and by whom the block was counted.
static unsigned stored_at[most_threads], counted_at, counting;

// That this is shared: where it is declared.
template <class T> TSM2_HOST_UNWATCHED inline void know_shared(const T &variable)
{
    const uint64_t address = reinterpret_cast<uint64_t>(&variable);
    uint64_t place = TSM2_HOST_SHARED_BYTES;
    for (unsigned v = 0; v < variable_count; ++v) {
        if (variables[v].address == address)
            return;
        place = variables[v].place + (variables[v].bytes + granule_bytes - 1) / granule_bytes * granule_bytes;
    }
    if (variable_count < most_variables && place + sizeof(T) <= TSM2_HOST_SHARED_BYTES + most_variable_bytes)
        variables[variable_count++] = {address, sizeof(T), place};
}

// Which byte of all shared memory this is, and from which on it is other memory; the same where it is none.
struct Stretch { uint64_t first, end; };
TSM2_HOST_UNWATCHED static Stretch stretch_of(const void *from)
{
    const uint64_t address = reinterpret_cast<uint64_t>(from);
    const uint64_t first = address - reinterpret_cast<uint64_t>(shared_bytes);
    if (first < TSM2_HOST_SHARED_BYTES)
        return {first, TSM2_HOST_SHARED_BYTES};
    for (unsigned v = 0; v < variable_count; ++v)
        if (address - variables[v].address < variables[v].bytes)
            return {variables[v].place + (address - variables[v].address), variables[v].place + variables[v].bytes};
    return {0, 0};
}

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

// A second write to a variable, which is about to be done, and what the first one left there.
struct Rewritten {
    const void *at;
    size_t bytes;
    unsigned char before[16];
    unsigned writer;
    uint64_t place;
};
static Rewritten rewritten;

// Now that it is done.
TSM2_HOST_UNWATCHED static void look_at_rewritten()
{
    const Rewritten last = rewritten;
    rewritten.at = nullptr;
    if (last.at != nullptr && memcmp(last.at, last.before, last.bytes) != 0)
        fail_race(last.writer, true, true, last.place);
}

TSM2_HOST_UNWATCHED static void touch(const void *from, size_t bytes, bool writes)
{
    look_at_rewritten();
    if (!in_kernel)
        return;
    const Stretch all = stretch_of(from);
    const unsigned warp = running / warp_threads, lane = 1u << running % warp_threads, now_of_warp = warp_time[warp];
    for (uint64_t byte = all.first; byte < all.first + bytes && byte < all.end; byte += granule_bytes) {
        Touched &here = touched[byte / granule_bytes];
        const bool same_warp = here.writer / warp_threads == warp;
        if (here.written_at == block_time && here.writer != running
            && (!same_warp || here.written_at_of_warp == now_of_warp)) {
            if (!writes || all.first < TSM2_HOST_SHARED_BYTES || bytes > sizeof(rewritten.before))
                fail_race(here.writer, writes, true, byte);
            rewritten = {from, bytes, {}, here.writer, byte};
            memcpy(rewritten.before, from, bytes);
        }
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
template <class T> inline void know_shared(const T &) {}
inline void store_for_blocks() {}
inline void count_block() {}

}  // namespace tsm2_host
#endif
