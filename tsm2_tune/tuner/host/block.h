// One block: its threads as fibers, which give way to each other at barriers and warp operations only; its
// shared memory; and what can go wrong in it.
#pragma once

#include "fibers.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

// The one dynamic shared array of a text. Pages behind the bytes that a launch asks for are made inaccessible.
#define TSM2_HOST_SHARED_BYTES (256 << 10)  // more than any GPU grants a block
#define TSM2_HOST_GUARD_BYTES (128 << 10)  // holds a whole page wherever it begins, even of 64 KiB
extern "C" {
__attribute__((visibility("hidden"), aligned(4096)))
unsigned char shared_bytes[TSM2_HOST_SHARED_BYTES + TSM2_HOST_GUARD_BYTES];
}

struct uint3 {
    unsigned x, y, z;
};
static uint3 threadIdx, blockIdx;

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
    unsigned blocks, splits, threads, smem_bytes, seed;
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

static Thread threads[most_threads];
static Fiber scheduler;
static unsigned running;  // the thread whose fiber runs
static bool in_kernel;
static unsigned block_time, warp_time[most_threads / warp_threads];  // barriers and __syncwarp that were passed
static unsigned missing_lane[most_threads / warp_threads];  // that a warp's operation was last found to wait for
static Launch *launch;
static void (*entry)(void **arguments);

static Fiber &next_fiber();

inline void give_way()
{
    Fiber &own = threads[running].fiber;
    switch_fiber(own, next_fiber());
}

// Record a fault of the running thread, and leave the kernel for good.
[[noreturn]] static void fail(const Fault &fault)
{
    launch->fault = fault;
    launch->fault.block = blockIdx.x;
    launch->fault.split = blockIdx.y;
    launch->fault.thread = running;
    switch_fiber(threads[running].fiber, scheduler);
    __builtin_unreachable();
}

__attribute__((noinline)) static void wait_at_barrier(int line)
{
    Thread &self = threads[running];
    self.state = at_barrier;
    self.line = line;
    give_way();
}

inline bool same_operation(const Thread &a, const Thread &b)
{
    return a.state == at_warp && b.state == at_warp && a.mask == b.mask && a.line == b.line;
}

[[noreturn]] static void fail_lane(unsigned lane, unsigned mask, int line)
{
    Fault fault = {};
    fault.kind = wrong_lane;
    fault.other = lane;
    fault.mask = mask;
    fault.line = line;
    fail(fault);
}

// Offer self.value to the warp, wait for the lanes in `mask`, and find the value of lane `source` in self.result.
// `orders`: what lanes did before is done for those that go on.
__attribute__((noinline)) static void wait_for_warp(unsigned mask, unsigned source, int line, bool orders = false)
{
    Thread &self = threads[running];
    Thread *warp = &self - running % warp_threads;
    const unsigned lane = running % warp_threads;
    const unsigned lanes = launch->threads - (running - lane);  // the last warp may have fewer than 32
    const unsigned group = lanes < warp_threads ? mask & ((1u << lanes) - 1) : mask;
    if (!(group >> lane & 1))
        fail_lane(lane, mask, line);
    if (!(group >> source & 1))
        fail_lane(source, mask, line);

    self.state = at_warp;
    self.line = line;
    self.mask = mask;
    self.source = source;
    unsigned &missing = missing_lane[running / warp_threads];
    const unsigned missing_before = missing;
    for (unsigned step = 0; step < warp_threads; ++step) {
        const unsigned other = (missing_before + step) % warp_threads;  // most often the first is missing still
        if (group >> other & 1 && !same_operation(self, warp[other])) {
            missing = other;
            give_way();  // the last to come fills in the result
            return;
        }
    }
    for (unsigned other = 0; other < warp_threads; ++other)
        if (group >> other & 1) {
            warp[other].result = warp[warp[other].source].value;
            warp[other].state = ready;
        }
    warp_time[running / warp_threads] += orders;
}

// Which of two places the running thread's lanes leave their operands in: a lane may come to the next exchange while
// another has yet to read those of this one, but not to the one after it.
inline unsigned place_of_exchange()
{
    return threads[running].exchanges++ % 2;
}

// No thread can go on: find one that waits and another that it waits for. Threads that wait for their warp
// come first, since those at a barrier may be waiting for them.
static void report_stuck()
{
    unsigned waiting = 0, missing = 0;
    for (unsigned t = 0; t < launch->threads; ++t)
        if (threads[t].state == at_warp || (threads[t].state == at_barrier && threads[waiting].state == ended))
            waiting = t;
    const Thread &waiter = threads[waiting];
    const unsigned first = waiter.state == at_warp ? waiting - waiting % warp_threads : 0;
    for (unsigned t = first; t < launch->threads; ++t) {
        missing = t;
        if (waiter.state == at_warp ? waiter.mask >> (t - first) & 1 && !same_operation(waiter, threads[t])
                                    : threads[t].state != at_barrier || threads[t].line != waiter.line)
            break;
    }
    Fault &fault = launch->fault;
    fault.kind = stuck;
    fault.block = blockIdx.x;
    fault.split = blockIdx.y;
    fault.thread = waiting;
    fault.state = waiter.state;
    fault.line = waiter.line;
    fault.mask = waiter.mask;
    fault.other = missing;
    fault.other_state = threads[missing].state;
    fault.other_line = threads[missing].line;
    fault.other_mask = threads[missing].mask;
}

// Let the threads go on from a barrier that all of them have reached. False where they have not.
static bool release_barrier()
{
    for (unsigned t = 0; t < launch->threads; ++t)
        if (threads[t].state != at_barrier || threads[t].line != threads[0].line)
            return false;
    for (unsigned t = 0; t < launch->threads; ++t)
        threads[t].state = ready;
    ++block_time;
    return true;
}

// The order in which the threads of a block are resumed: for each block another rotation of the launch's
// permutation, forwards or backwards. Seed 0 is 0, 1, 2, ... In some blocks a warp goes on as far as it can before
// another does: else the operations of warps, at which all threads are resumed in turn, hide that a barrier is missing.
struct Order {
    unsigned permutation[most_threads], sequence[most_threads], count, random;
    unsigned groups, group_end[most_threads / warp_threads];  // of the threads that go on as far as they can

    unsigned next()
    {
        random ^= random << 13;  // Marsaglia's xorshift; stays 0 for seed 0
        random ^= random >> 17;
        return random ^= random << 5;
    }

    void shuffle(unsigned threads, unsigned seed)
    {
        count = threads;
        random = seed * 2654435769u;  // odd, so only seed 0 gives 0; spreads small seeds over the word
        for (unsigned t = 0; t < count; ++t)
            permutation[t] = sequence[t] = t;
        for (unsigned t = count; random && t > 1; --t) {
            const unsigned other = next() % t, thread = permutation[t - 1];
            permutation[t - 1] = permutation[other];
            permutation[other] = thread;
        }
        groups = 1;
        group_end[0] = count;
    }

    void turn()
    {
        if (random == 0)
            return;
        const unsigned first = next() % count, bits = next();
        const bool backwards = bits & 1, by_warps = bits & 2;
        const unsigned warps = (count + warp_threads - 1) / warp_threads;
        unsigned place[most_threads / warp_threads] = {};  // of the next thread of a warp
        groups = by_warps ? warps : 1;
        group_end[0] = count;
        const unsigned first_warp = permutation[backwards ? count - 1 - first : first] / warp_threads;
        for (unsigned g = 0, begin = 0; by_warps && g < warps; begin = group_end[g++]) {
            const unsigned warp = (first_warp + (backwards ? warps - g : g)) % warps;
            place[warp] = begin;
            group_end[g] = begin + (warp + 1 < warps ? warp_threads : count - warp * warp_threads);
        }
        for (unsigned step = 0; step < count; ++step) {
            const unsigned at = first + step < count ? first + step : first + step - count;
            const unsigned thread = permutation[backwards ? count - 1 - at : at];
            sequence[by_warps ? place[thread / warp_threads]++ : step] = thread;
        }
    }
};
static Order order;
static unsigned step, past_step;  // whose turn it is, and where the turns of its group end

inline bool may_go_on(State state)
{
    return state == fresh || state == ready;
}

inline void begin_turn()
{
    running = threadIdx.x = order.sequence[step];
}

// What a fiber does: run the thread whose turn it is, and on the same stack those after it, until one has to
// wait. Threads that never wait so need one stack and no switch.
[[noreturn]] static void run_threads()
{
    for (;;) {
        entry(launch->arguments);
        threads[running].state = ended;
        if (step + 1 == past_step || threads[order.sequence[step + 1]].state != fresh)
            break;
        ++step;
        begin_turn();
    }
    give_way();
    __builtin_unreachable();
}

// Stacks one page apart would fall into the same cache sets: each thread's starts 64 bytes lower than its
// neighbour's, over 16 KiB.
inline void prepare_thread(unsigned thread)
{
    char *stack = launch->stacks + thread * launch->stack_bytes;
    char *top = stack + launch->stack_bytes - thread % 256 * 64;
    prepare(threads[thread].fiber, stack + launch->stack_guard_bytes, top, run_threads);
}

// That of the next thread which can go on, whose turn it is then; the scheduler's where the group has no more.
__attribute__((noinline)) static Fiber &next_fiber()
{
    while (++step < past_step) {
        Thread &thread = threads[order.sequence[step]];
        if (!may_go_on(thread.state))
            continue;
        if (thread.state == fresh)
            prepare_thread(order.sequence[step]);
        begin_turn();
        return thread.fiber;
    }
    return scheduler;
}

// Resume those of the threads from `first` to before `past` in the order that can go on, once. False where there was
// none, or where one failed.
static bool resume_threads(unsigned first, unsigned past)
{
    step = first - 1;
    past_step = past;
    Fiber &fiber = next_fiber();
    if (&fiber == &scheduler)
        return false;
    in_kernel = true;
    switch_fiber(scheduler, fiber);
    in_kernel = false;
    return launch->fault.kind == no_fault;
}

// The same of the whole block.
static bool resume_block()
{
    if (order.groups == 1)
        return resume_threads(0, order.count);
    bool any = false;
    for (unsigned g = 0, begin = 0; g < order.groups; begin = order.group_end[g++]) {
        while (resume_threads(begin, order.group_end[g]))
            any = true;
        if (launch->fault.kind != no_fault)
            return false;
    }
    return any;
}

// Shared memory starts as NaN, so that reading what was not written shows. The bytes between its end and
// the first inaccessible page must stay as they were.
static size_t accessible_bytes;  // of shared memory: whole pages

static void guard_shared_memory()
{
    const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const uintptr_t start = reinterpret_cast<uintptr_t>(shared_bytes);
    const uintptr_t first = start / page * page, last = (start + sizeof shared_bytes) / page * page;
    const uintptr_t guard = (start + launch->smem_bytes + page - 1) / page * page;
    mprotect(reinterpret_cast<void *>(first), guard - first, PROT_READ | PROT_WRITE);
    mprotect(reinterpret_cast<void *>(guard), last - guard, PROT_NONE);
    accessible_bytes = guard - start;
    launch->shared_memory = shared_bytes;
}

static void check_shared_memory()
{
    for (size_t byte = launch->smem_bytes; byte < accessible_bytes; ++byte)
        if (shared_bytes[byte] != 0xFF) {
            launch->fault.kind = shared_overrun;
            launch->fault.block = blockIdx.x;
            launch->fault.split = blockIdx.y;
            launch->fault.address = byte;
            return;
        }
}

static void forget_copies();
static void free_copies();

static void run_block(unsigned block, unsigned split)
{
    blockIdx.x = block;
    blockIdx.y = split;
    memset(shared_bytes, 0xFF, accessible_bytes);
    for (unsigned t = 0; t < launch->threads; ++t) {
        threads[t].state = fresh;
        threads[t].exchanges = 0;
    }
    forget_copies();
    order.turn();
    ++block_time;
    do {
        while (resume_block()) {
        }
    } while (launch->fault.kind == no_fault && release_barrier());

    for (unsigned t = 0; t < launch->threads && launch->fault.kind == no_fault; ++t)
        if (threads[t].state != ended)
            report_stuck();
    if (launch->fault.kind == no_fault)
        check_shared_memory();
}

}  // namespace tsm2_host
