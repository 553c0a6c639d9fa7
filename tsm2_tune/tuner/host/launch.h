// A launch: every block in turn, with the CPU's own faults caught and reported as the kernel's; and the
// description by which a kernel is found and called from outside.
#pragma once

#include "block.h"

#include <pthread.h>
#include <signal.h>

struct dim3 {
    unsigned x, y, z;
};
static dim3 blockDim = {1, 1, 1}, gridDim = {1, 1, 1};

namespace tsm2_host {

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

static void run(Launch *request, void (*invoke)(void **arguments))
{
    launch = request;
    entry = invoke;
    kernel_thread = pthread_self();
    blockDim.x = request->threads;
    gridDim.x = request->blocks;
    gridDim.y = request->splits;
    guard_shared_memory();
    order.shuffle(request->threads, request->seed);
    SignalGuard guard;
    for (unsigned split = 0; split < request->splits; ++split)
        for (unsigned block = 0; block < request->blocks && request->fault.kind == no_fault; ++block)
            run_block(block, split);
    free_copies();
}

// Places<n> is Places<0, 0, 1, ... n - 1>: what std::make_index_sequence does, without its header.
template <size_t left, size_t... p> struct Places : Places<left - 1, left - 1, p...> {};
template <size_t... p> struct Places<0, p...> {};

// Calls a kernel of any signature with a pointer to each of its arguments, as cudaLaunchKernel does.
template <auto kernel> struct Entry;
template <class... Parameters, void (*kernel)(Parameters...)> struct Entry<kernel> {
    static constexpr unsigned parameters = sizeof...(Parameters);
    static constexpr unsigned parameter_bytes[] = {sizeof(Parameters)..., 0};

    template <size_t... p> static void call(void **arguments, Places<0, p...>)
    {
        kernel(*static_cast<Parameters *>(arguments[p])...);
    }
    static void invoke(void **arguments) { call(arguments, Places<parameters>()); }
    static void run(Launch *request) { tsm2_host::run(request, invoke); }
};

// Mirrored in faults.py.
struct Kernel {
    void (*run)(Launch *);
    unsigned most_threads;  // its __launch_bounds__, or what a block may have
    unsigned parameters;
    const unsigned *parameter_bytes;
};

constexpr unsigned launch_bound(unsigned threads = most_threads, unsigned = 0, unsigned = 0)
{
    return threads;
}

}  // namespace tsm2_host

// Makes a kernel known to the outside; what follows the name is what its __launch_bounds__ says.
#define TSM2_HOST_KERNEL(name, ...)                                                                      \
    extern "C" {                                                                                        \
    __attribute__((visibility("default"), used)) tsm2_host::Kernel tsm2_host_kernel_##name = {          \
        tsm2_host::Entry<name>::run, tsm2_host::launch_bound(__VA_ARGS__),                              \
        tsm2_host::Entry<name>::parameters, tsm2_host::Entry<name>::parameter_bytes};                   \
    }
