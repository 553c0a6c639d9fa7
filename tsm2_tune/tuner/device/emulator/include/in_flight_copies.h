// Copies that are in flight: the definitions of the functions that async_copy_on_host.h declares.
#pragma once

#include "c_library.h"
#include "async_copy_on_host.h"
#include "races.h"

namespace tsm2_host {

struct Copy {
    void *to;
    const void *from;
    unsigned bytes, given, group;  // the first `given` bytes are copied, the rest become 0
};

// A thread's copies in flight. No std::vector: each kernel would compile its templates anew.
struct Copies {
    Copy *in_flight;
    unsigned count, capacity;
    unsigned committed;  // groups
};

static Copies copies[most_threads];

void start_copy(void *to, const void *from, unsigned bytes, unsigned given)
{
    if ((reinterpret_cast<uint64_t>(to) | reinterpret_cast<uint64_t>(from)) % bytes != 0)
        __builtin_trap();  // a GPU faults too
    touch(to, bytes, true);  // from now until the thread waits for it
    Copies &own = copies[running];
    if (own.count == own.capacity) {
        own.capacity = own.capacity ? 2 * own.capacity : 16;
        own.in_flight = static_cast<Copy *>(realloc(own.in_flight, own.capacity * sizeof(Copy)));
        if (own.in_flight == nullptr)
            abort();
    }
    own.in_flight[own.count++] = {to, from, bytes, given, own.committed};
}

void commit_copies() { ++copies[running].committed; }

void wait_for_copies(unsigned pending)
{
    Copies &own = copies[running];
    unsigned done = 0;
    for (; done < own.count && own.committed - own.in_flight[done].group > pending; ++done) {
        const Copy &copy = own.in_flight[done];
        touch(copy.to, copy.bytes, true);
        memcpy(copy.to, copy.from, copy.given);
        memset(static_cast<char *>(copy.to) + copy.given, 0, copy.bytes - copy.given);
    }
    own.count -= done;
    if (done > 0)
        memmove(own.in_flight, own.in_flight + done, own.count * sizeof(Copy));
}

void wait_for_all_copies()
{
    commit_copies();
    wait_for_copies(0);
}

// Drop the copies of a block that has ended, so that none takes place in the next block.
static void forget_copies()
{
    for (unsigned t = 0; t < launch->threads; ++t)
        copies[t].count = 0;
}

// Free the copies of a launch that has ended.
static void free_copies()
{
    for (unsigned t = 0; t < launch->threads; ++t) {
        free(copies[t].in_flight);
        copies[t] = {};
    }
}

}  // namespace tsm2_host
