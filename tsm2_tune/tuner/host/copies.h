// Asynchronous copies to shared memory: none is done before the thread that began it awaits it, so that a text that
// awaits too few of them reads what was there before.
#pragma once

#include "races.h"

#include <vector>

namespace tsm2_host {

struct Copy {
    void *to;
    const void *from;
    unsigned bytes, given, group;  // of `bytes`, those that are not `given` become 0
};

struct Copies {
    std::vector<Copy> waiting;
    unsigned closed = 0;  // groups
};

static Copies copies[most_threads];

inline void copy_later(void *to, const void *from, unsigned bytes, unsigned given)
{
    if ((reinterpret_cast<uint64_t>(to) | reinterpret_cast<uint64_t>(from)) % bytes != 0)
        __builtin_trap();  // a GPU faults too
    touch(to, bytes, true);  // from here on, until it is awaited
    copies[running].waiting.push_back({to, from, bytes, given, copies[running].closed});
}

inline void close_copies() { ++copies[running].closed; }

// Until at most `left` of the closed groups are on their way.
inline void await_copies(unsigned left)
{
    Copies &mine = copies[running];
    size_t done = 0;
    for (; done < mine.waiting.size() && mine.closed - mine.waiting[done].group > left; ++done) {
        const Copy &copy = mine.waiting[done];
        touch(copy.to, copy.bytes, true);
        memcpy(copy.to, copy.from, copy.given);
        memset(static_cast<char *>(copy.to) + copy.given, 0, copy.bytes - copy.given);
    }
    mine.waiting.erase(mine.waiting.begin(), mine.waiting.begin() + done);
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
        copies[t].waiting.clear();
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
