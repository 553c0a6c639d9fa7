// Runs the blocks of a launch: defines the functions that block.h and async_copy_on_host.h declare. Each text is compiled with them,
// unless it is linked with an object of them: -DTSM2_HOST_LINKED -x c++ emulation.h.
#pragma once

#include "block.h"
#include "thread_order.h"
#include "in_flight_copies.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef TSM2_HOST_LINKED
#undef TSM2_HOST_OWN
#define TSM2_HOST_OWN
#include "launch_state.h"
unsigned char shared_bytes[TSM2_HOST_SHARED_BYTES + TSM2_HOST_GUARD_BYTES];
#endif

namespace tsm2_host {

static Fiber scheduler;
static unsigned missing_lane[most_threads / warp_threads];  // that a warp's operation was last found to wait for
static void (*entry)(void **arguments);

static Fiber &next_fiber();

static void give_way()
{
    Fiber &own = threads[running].fiber;
    switch_fiber(own, next_fiber());
}

[[noreturn]] void fail(const Fault &fault)
{
    launch->fault = fault;
    launch->fault.block = blockIdx.x;
    launch->fault.split = blockIdx.y;
    launch->fault.thread = running;
    switch_fiber(threads[running].fiber, scheduler);
    __builtin_unreachable();
}

__attribute__((noinline)) void wait_at_barrier(int line)
{
    Thread &self = threads[running];
    self.state = at_barrier;
    self.line = line;
    give_way();
}

static bool same_operation(const Thread &a, const Thread &b)
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

__attribute__((noinline)) void wait_for_warp(unsigned mask, unsigned source, int line, bool orders)
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

static void run_block(unsigned block, unsigned split, unsigned product)
{
    blockIdx = {block, split, product};
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

constexpr int caught_signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
static struct sigaction signals_before[sizeof caught_signals / sizeof *caught_signals];
static pthread_t kernel_thread;  // of the operating system

// Runs on a stack of its own, as the fault may be that the fiber's is full. It leaves by switching to the
// scheduler; SA_NODEFER has kept the signal unblocked.
static void catch_signal(int signal, siginfo_t *about, void *)
{
    if (!in_kernel || !pthread_equal(pthread_self(), kernel_thread)) {
        for (unsigned s = 0; s < sizeof caught_signals / sizeof *caught_signals; ++s)
            if (caught_signals[s] == signal)
                sigaction(signal, &signals_before[s], nullptr);  // not ours: happens again, without us
        return;
    }
    Fault fault = {};
    fault.kind = signalled;
    fault.signal = signal;
    fault.signal_code = about->si_code;
    fault.address = reinterpret_cast<uint64_t>(about->si_addr);
    fail(fault);
}

// Catches signals as long as it lives, and then leaves everything as it found it.
struct SignalGuard {
    stack_t stack_before;

    SignalGuard()
    {
        stack_t stack = {};
        stack.ss_sp = launch->stacks + most_threads * launch->stack_bytes + launch->stack_guard_bytes;
        stack.ss_size = launch->stack_bytes - launch->stack_guard_bytes;
        sigaltstack(&stack, &stack_before);
        struct sigaction action = {};
        action.sa_sigaction = catch_signal;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
        sigemptyset(&action.sa_mask);
        for (unsigned s = 0; s < sizeof caught_signals / sizeof *caught_signals; ++s)
            sigaction(caught_signals[s], &action, &signals_before[s]);
    }

    ~SignalGuard()
    {
        for (unsigned s = 0; s < sizeof caught_signals / sizeof *caught_signals; ++s)
            sigaction(caught_signals[s], &signals_before[s], nullptr);
        sigaltstack(&stack_before, nullptr);
    }
};

void run(Launch *request, void (*invoke)(void **arguments))
{
    launch = request;
    entry = invoke;
    kernel_thread = pthread_self();
    blockDim = {request->threads, 1, 1};
    gridDim = {request->blocks, request->splits, request->products};
    guard_shared_memory();
    order.shuffle(request->threads, request->seed);
    SignalGuard guard;
    // Products are the innermost loop, so that they meet in a workspace that they share by mistake.
    for (unsigned split = 0; split < request->splits; ++split)
        for (unsigned block = 0; block < request->blocks; ++block)
            for (unsigned product = 0; product < request->products && request->fault.kind == no_fault; ++product)
                run_block(block, split, product);
    free_copies();
}

}  // namespace tsm2_host
