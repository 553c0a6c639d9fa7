/* Say why a kernel was chosen. */

#include "model.h"

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

/* Append a shape, such as 20480x16x20480, or of a batch 500000*8x8x8. */
static void add_shape(char *text, size_t bytes, int64_t batch, int64_t m, int64_t n, int64_t k)
{
    if (batch > 1)
        add(text, bytes, "%lld*", (long long)batch);
    add(text, bytes, "%lldx%lldx%lld", (long long)m, (long long)n, (long long)k);
}

static void add_measured_shape(char *text, size_t bytes, const struct core_choice *choice)
{
    add(text, bytes, ": measured at ");
    add_shape(text, bytes, choice->measured_batch, choice->measured[0], choice->measured[1], choice->measured[2]);
}

static void add_tuned(char *text, size_t bytes, const struct core_pack *pack, const struct core_choice *choice)
{
    const struct core_kernel *kernel = &pack->kernels[choice->kernel];
    add(text, bytes, ": tuned for this shape");
    if (choice->us > 0)
        add(text, bytes, "; with the L2 %s %.1f us measured", core_text(pack, kernel->l2_state), choice->us);
    if (choice->vendor_us > 0)
        add(text, bytes, ", %s %.1f us", core_text(pack, kernel->vendor_routine), choice->vendor_us);
}

/* Add why a kernel is the nearest, or the fastest on a host, where no times are printed. */
static void add_distance(char *text, size_t bytes, const struct core_kernel *kernel, const struct core_choice *choice)
{
    add(text, bytes, ": tuned for ");
    add_shape(text, bytes, kernel->batch, kernel->m, kernel->n, kernel->k);
    if (choice->measured[0] != kernel->m || choice->measured[1] != kernel->n || choice->measured[2] != kernel->k ||
        choice->measured_batch != kernel->batch)
        add_measured_shape(text, bytes, choice);
    add(text, bytes, ", at distance %.1f", choice->distance);
}

static void add_predicted(char *text, size_t bytes, const struct core_pack *pack, const struct core_choice *choice)
{
    const struct core_kernel *kernel = &pack->kernels[choice->kernel];
    add_measured_shape(text, bytes, choice);
    add(text, bytes, "; with the L2 %s %.1f us predicted, from %.1f us there", core_text(pack, kernel->l2_state),
        choice->us, choice->measured_us);
    if (kernel->time_count > 0)
        add(text, bytes, " and times at %u other shape%s", (unsigned)kernel->time_count,
            kernel->time_count > 1 ? "s" : "");
    if (choice->vendor_us > 0)
        add(text, bytes, ", cuBLAS's gemm %.1f us", choice->vendor_us);
    if (choice->is_vendors && choice->vendor_us >= choice->us)
        add(text, bytes, "; the predicted gain of %.2f x is too uncertain: at least %.2f x is needed",
            choice->vendor_us / choice->us, least_gain(pack, choice));
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
    add(text, bytes, "%s", core_text(pack, kernel->configuration));
    if (choice->splits > 1)
        add(text, bytes, " with %d %s", (int)choice->splits, kernel->is_persistent ? "blocks" : "splits");
    if (choice->is_transposed)
        add(text, bytes, ", by op %s as the transposed product ", core_text(pack, kernel->op));
    else if (choice->merged)
        add(text, bytes, ", as one product ");
    if (choice->is_transposed || choice->merged)
        add_shape(text, bytes, choice->batch_count, choice->extents[0], choice->extents[1], choice->extents[2]);
    if (choice->is_of_other_device)
        add(text, bytes, ", tuned on %s: no winner of %s fits; tune on that GPU for its own kernels",
            core_text(pack, pack->devices[kernel->device].name), device);
    if (choice->reason == CORE_TUNED)
        add_tuned(text, bytes, pack, choice);
    else if (choice->us > 0)
        add_predicted(text, bytes, pack, choice);
    else
        add_distance(text, bytes, kernel, choice);
}
