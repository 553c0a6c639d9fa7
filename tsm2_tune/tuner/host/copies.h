// Asynchronous copies to shared memory: none is done before the thread that began it awaits it, so that a text that
// awaits too few of them reads what was there before.
#pragma once

#include "c_library.h"
#include "races.h"

namespace tsm2_host {

struct Copy {
    void *to;
    const void *from;
    unsigned bytes, given, group;  // of `bytes`, those that are not `given` become 0
};

// Those of a thread that wait. No std::vector, which each kernel would compile anew.
struct Copies {
    Copy *waiting;
    unsigned count, room;  // so many, of as many as there is room for
    unsigned closed;  // groups
};

static Copies copies[most_threads];

static void copy_later(void *to, const void *from, unsigned bytes, unsigned given)
{
    if ((reinterpret_cast<uint64_t>(to) | reinterpret_cast<uint64_t>(from)) % bytes != 0)
        __builtin_trap();  // a GPU faults too
    touch(to, bytes, true);  // from here on, until it is awaited
    Copies &mine = copies[running];
    if (mine.count == mine.room) {
        mine.room = mine.room ? 2 * mine.room : 16;
        mine.waiting = static_cast<Copy *>(realloc(mine.waiting, mine.room * sizeof(Copy)));
        if (mine.waiting == nullptr)
            abort();
    }
    mine.waiting[mine.count++] = {to, from, bytes, given, mine.closed};
}

inline void close_copies() { ++copies[running].closed; }

// Until at most `left` of the closed groups are on their way.
static void await_copies(unsigned left)
{
    Copies &mine = copies[running];
    unsigned done = 0;
    for (; done < mine.count && mine.closed - mine.waiting[done].group > left; ++done) {
        const Copy &copy = mine.waiting[done];
        touch(copy.to, copy.bytes, true);
        memcpy(copy.to, copy.from, copy.given);
        memset(static_cast<char *>(copy.to) + copy.given, 0, copy.bytes - copy.given);
    }
    mine.count -= done;
    if (done > 0)
        memmove(mine.waiting, mine.waiting + done, mine.count * sizeof(Copy));
}

inline void await_all_copies()
{
    close_copies();
    await_copies(0);
}

// Of a block that has ended: what it did not await is not done in the next one.
static void forget_copies()
{
    for (unsigned t = 0; t < launch->threads; ++t)
        copies[t].count = 0;
}

// Of a launch that has ended.
static void free_copies()
{
    for (unsigned t = 0; t < launch->threads; ++t) {
        free(copies[t].waiting);
        copies[t] = {};
    }
}

}  // namespace tsm2_host

// What kernels call, as kernels/async_copy.cuh has it for a GPU.
enum class CacheOp { ca, ca_L2_128B, cg_L2_128B };

template <int bytes, CacheOp op = CacheOp::ca> inline void cp_async(void *to, const void *from)
{
    tsm2_host::copy_later(to, from, bytes, bytes);
}
template <int bytes, CacheOp op = CacheOp::ca, class T> inline void cp_async_zfill(void *to, const T *from, int given)
{
    tsm2_host::copy_later(to, from, bytes, given * sizeof(T));
}
template <CacheOp op> inline void cp_async_if(void *to, const void *from, bool wanted, bool given)
{
    if (wanted)
        tsm2_host::copy_later(to, from, 16, given ? 16 : 0);
}
inline void cp_async_fence() { tsm2_host::close_copies(); }
template <int groups_left> inline void cp_async_wait() { tsm2_host::await_copies(groups_left); }
inline void cp_async_wait_all() { tsm2_host::await_all_copies(); }
