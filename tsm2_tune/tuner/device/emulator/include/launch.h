// A launch: every block in turn, with the CPU's own faults caught and reported as the kernel's; and the
// description by which a kernel is found and called from outside.
#pragma once

#include "block.h"

namespace tsm2_host {

// IndexSequence<n> is IndexSequence<0, 0, 1, ... n - 1>: what std::make_index_sequence does, without its header.
template <size_t count, size_t... p> struct IndexSequence : IndexSequence<count - 1, count - 1, p...> {};
template <size_t... p> struct IndexSequence<0, p...> {};

// Calls a kernel of any signature with a pointer to each of its arguments, as cudaLaunchKernel does.
template <auto kernel> struct Entry;
template <class... Parameters, void (*kernel)(Parameters...)> struct Entry<kernel> {
    static constexpr unsigned parameters = sizeof...(Parameters);
    static constexpr unsigned parameter_bytes[] = {sizeof(Parameters)..., 0};

    template <size_t... p> static void call(void **arguments, IndexSequence<0, p...>)
    {
        kernel(*static_cast<Parameters *>(arguments[p])...);
    }
    static void invoke(void **arguments) { call(arguments, IndexSequence<parameters>()); }
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
