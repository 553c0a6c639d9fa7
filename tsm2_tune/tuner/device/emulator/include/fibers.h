// Fibers: stacks that the threads of a block run on, and the switch from one to another. A switch saves the
// registers that a C++ function must preserve and nothing else; no system call is made.
#pragma once

#include <stddef.h>
#include <stdint.h>

#if defined(__ELF__) && defined(__LP64__) && defined(__x86_64__) && !defined(TSM2_HOST_UCONTEXT)
#define TSM2_HOST_SAVED_WORDS 6  // rbp, rbx, r12 ... r15
asm(R"(
    .text
    .p2align 4
    .type tsm2_host_switch, @function
tsm2_host_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size tsm2_host_switch, . - tsm2_host_switch
)");
#elif defined(__ELF__) && defined(__LP64__) && defined(__aarch64__) && !defined(TSM2_HOST_UCONTEXT)
#define TSM2_HOST_SAVED_WORDS 20  // d8 ... d15, x19 ... x29, and x30, which `ret` jumps to
asm(R"(
    .text
    .p2align 4
    .type tsm2_host_switch, %function
tsm2_host_switch:
    sub sp, sp, #160
    stp d8, d9, [sp, #0]
    stp d10, d11, [sp, #16]
    stp d12, d13, [sp, #32]
    stp d14, d15, [sp, #48]
    stp x19, x20, [sp, #64]
    stp x21, x22, [sp, #80]
    stp x23, x24, [sp, #96]
    stp x25, x26, [sp, #112]
    stp x27, x28, [sp, #128]
    stp x29, x30, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp d8, d9, [sp, #0]
    ldp d10, d11, [sp, #16]
    ldp d12, d13, [sp, #32]
    ldp d14, d15, [sp, #48]
    ldp x19, x20, [sp, #64]
    ldp x21, x22, [sp, #80]
    ldp x23, x24, [sp, #96]
    ldp x25, x26, [sp, #112]
    ldp x27, x28, [sp, #128]
    ldp x29, x30, [sp, #144]
    add sp, sp, #160
    ret
    .size tsm2_host_switch, . - tsm2_host_switch
)");
#else
#include <ucontext.h>
#endif

namespace tsm2_host {

#ifdef TSM2_HOST_SAVED_WORDS

struct Fiber {
    void *stack_pointer;
};

// Push the saved registers, leave the stack pointer in *from, and go on where the stack pointer `to` was left.
extern "C" __attribute__((visibility("hidden"))) void tsm2_host_switch(void **from, void *to);

inline void switch_fiber(Fiber &from, Fiber &to)
{
    tsm2_host_switch(&from.stack_pointer, to.stack_pointer);
}

// Make the first switch to `fiber` call `start`, which must never return, on the stack that ends at `top`.
inline void prepare(Fiber &fiber, char *, char *top, void (*start)())
{
    uintptr_t *word = reinterpret_cast<uintptr_t *>(top);  // `top` is a multiple of 16
#ifdef __x86_64__
    *--word = 0;  // where `start` finds its return address: it has none
    *--word = reinterpret_cast<uintptr_t>(start);
    for (int w = 0; w < TSM2_HOST_SAVED_WORDS; ++w)
        *--word = 0;
#else
    *--word = reinterpret_cast<uintptr_t>(start);  // x30
    for (int w = 1; w < TSM2_HOST_SAVED_WORDS; ++w)
        *--word = 0;
#endif
    fiber.stack_pointer = word;
}

#else

struct Fiber {
    ucontext_t context;
};

inline void switch_fiber(Fiber &from, Fiber &to)
{
    swapcontext(&from.context, &to.context);
}

inline void prepare(Fiber &fiber, char *bottom, char *top, void (*start)())
{
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = bottom;
    fiber.context.uc_stack.ss_size = static_cast<size_t>(top - bottom);
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, start, 0);
}

#endif

}  // namespace tsm2_host
