// One block: its threads as fibers, which give way to each other at barriers and warp operations only; its
// shared memory; and what can go wrong in it. Functions that have no body here have it in emulation.h.
#pragma once

#include "fibers.h"

#include <string.h>

// The emulation's functions and variables are of each text, which is compiled with them; or, where TSM2_HOST_LINKED is
// defined, of an object that texts are linked with.
#ifdef TSM2_HOST_LINKED
#define TSM2_HOST_OWN extern
#define TSM2_HOST_SHARED extern
#else
#define TSM2_HOST_OWN static
#define TSM2_HOST_SHARED
#endif
#pragma GCC visibility push(hidden)

// The one dynamic shared array of a text. Pages behind the bytes that a launch asks for are made inaccessible.
#define TSM2_HOST_SHARED_BYTES (256 << 10)  // more than any GPU grants a block
#define TSM2_HOST_GUARD_BYTES (128 << 10)  // holds a whole page wherever it begins, even of 64 KiB
extern "C" {
TSM2_HOST_SHARED __attribute__((visibility("hidden"), aligned(4096)))
unsigned char shared_bytes[TSM2_HOST_SHARED_BYTES + TSM2_HOST_GUARD_BYTES];
}

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
};

namespace tsm2_host {

constexpr unsigned warp_threads = 32, most_threads = 1024;

// The numbers are known to faults.py.
enum FaultKind : int {
    no_fault = 0,
    signalled = 1,  // an access, an arithmetic or an illegal instruction that the CPU refused
    stuck = 2,  // `thread` waits for `other`, which will not come
    wrong_lane = 3,  // a warp operation of `thread` involves the lane `other`, which takes no part in it
    shared_overrun = 4,  // the byte `address` of shared memory, past its end, was written
    race = 5,  // `thread` and `other` touched the byte `address` of shared memory; `state`, `other_state`: it wrote
    counted_early = 6,  // `other` stored for other blocks with no barrier before they were told that it has
};

enum State : int { fresh = 0, ready = 1, at_barrier = 2, at_warp = 3, ended = 4 };

// Mirrored in faults.py.
struct Fault {
    int kind, signal, signal_code;
    unsigned block, split, thread, other;
    int state, line, other_state, other_line;
    unsigned mask, other_mask;
    uint64_t address;
};

// What one launch is asked to do, and what came of it. Mirrored in faults.py.
struct Launch {
    void **arguments;
    unsigned blocks, splits, products, threads, smem_bytes, seed;
    char *stacks;  // most_threads stacks of stack_bytes, each with an inaccessible page at its low end, and
    uint64_t stack_bytes, stack_guard_bytes;  // one more for the signal handler
    unsigned char *shared_memory;  // filled in: where shared memory is
    Fault fault;
};

struct Thread {
    Fiber fiber;
    State state;
    int line;  // where it waits
    unsigned mask, source;  // of the warp operation it waits in, and the lane that it reads there
    uint64_t value, result;  // what it offers to its warp and what it gets
    unsigned exchanges;  // in which it has taken part
};

}  // namespace tsm2_host

#include "launch_state.h"

namespace tsm2_host {

// Record a fault of the running thread, and leave the kernel for good.
[[noreturn]] TSM2_HOST_OWN void fail(const Fault &fault);

TSM2_HOST_OWN void wait_at_barrier(int line);

// Offer self.value to the warp, wait for the lanes in `mask`, and find the value of lane `source` in self.result.
// `orders`: what lanes did before is done for those that go on.
TSM2_HOST_OWN void wait_for_warp(unsigned mask, unsigned source, int line, bool orders = false);

// All blocks of a launch, of which `invoke` runs a thread.
TSM2_HOST_OWN void run(Launch *request, void (*invoke)(void **arguments));

// Which of two places the running thread's lanes leave their operands in: a lane may come to the next exchange while
// another has yet to read those of this one, but not to the one after it.
inline unsigned exchange_slot()
{
    return threads[running].exchanges++ % 2;
}

}  // namespace tsm2_host

#pragma GCC visibility pop
