// The copies that threads began and have yet to await: the bodies of what async_copy_on_host.h declares.
#pragma once

#include "c_library.h"
#include "async_copy_on_host.h"
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

void copy_later(void *to, const void *from, unsigned bytes, unsigned given)
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

void close_copies() { ++copies[running].closed; }

void await_copies(unsigned left)
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

void await_all_copies()
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
