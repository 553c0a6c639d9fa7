/* Say why a kernel was chosen. */

#include "core.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Append formatted text, as far as there is room. */
static void add(char *text, size_t bytes, const char *format, ...)
{
    const size_t has = strlen(text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + has, bytes - has, format, arguments);
    va_end(arguments);
}

void core_explain(const struct core_pack *pack, const struct core_choice *choice, const char *device, char *text,
                  size_t bytes)
{
    if (bytes == 0)
        return;
    text[0] = '\0';
    if (choice->reason == CORE_NO_KERNEL)
        return;
    const struct core_kernel *kernel = &pack->kernels[choice->kernel];
    const long long m = kernel->m, n = kernel->n, k = kernel->k;
    const char *l2_state = core_text(pack, kernel->l2_state);
    const int is_tuned = choice->reason == CORE_TUNED;
    add(text, bytes, "%s", core_text(pack, kernel->configuration));
    if (choice->splits > 1)
        add(text, bytes, " with %d %s", (int)choice->splits, kernel->is_persistent ? "blocks" : "splits");
    if (choice->is_transposed)
        add(text, bytes, ", by op %s as the transposed product %lldx%lldx%lld", core_text(pack, kernel->op),
            (long long)choice->extents[0], (long long)choice->extents[1], (long long)choice->extents[2]);
    if (choice->is_of_other_device)
        add(text, bytes, ", tuned on %s: no winner of %s fits; tune on that GPU for its own kernels",
            core_text(pack, pack->devices[kernel->device].name), device);
    if (choice->reason == CORE_TIMED) {
        add(text, bytes, ": timed on these arrays, with the L2 dirty %.1f us", choice->us);
        if (choice->vendor_us > 0)
            add(text, bytes, ", the vendor %.1f us", choice->vendor_us);
        return;
    }
    if (choice->us <= 0) {
        if (is_tuned)
            add(text, bytes, ": tuned for this shape");
        else
            add(text, bytes, ": tuned for %lldx%lldx%lld, at distance %.1f", m, n, k, choice->distance);
    } else if (is_tuned)
        add(text, bytes, ": tuned for this shape; with the L2 %s %.1f us measured", l2_state, choice->us);
    else
        add(text, bytes, ": measured at %lldx%lldx%lld; with the L2 %s %.1f us predicted, from %.1f us there",
            (long long)choice->measured[0], (long long)choice->measured[1], (long long)choice->measured[2], l2_state,
            choice->us, choice->measured_us);
    if (!is_tuned && choice->us > 0 && kernel->time_count > 0)
        add(text, bytes, " and times at %u other shape%s", (unsigned)kernel->time_count,
            kernel->time_count > 1 ? "s" : "");
    if (choice->vendor_us > 0)
        add(text, bytes, ", %s %.1f us", is_tuned ? core_text(pack, kernel->vendor_routine) : "cuBLAS's gemm",
            choice->vendor_us);
}
