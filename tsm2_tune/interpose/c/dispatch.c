/* Choose for each call between a tuned kernel of the pack and cuBLAS. */

#include <string.h>

#include "standin.h"

_Thread_local int is_inside;

enum { MOST_FAILURES = 3 }; /* after this many failed launches of a line, cuBLAS computes all of its products */

/* Return a setting of the handle, read with cuBLAS's function of this name; `fallback` if that fails. */
static int setting(const char *name, _Atomic(void *) *place, cublas_handle handle, int fallback)
{
    int (*get)(cublas_handle, int *), value = fallback;
    void *found = cublas_function(name, handle, place);
    memcpy(&get, &found, sizeof found);
    return get == NULL || get(handle, &value) != CUBLAS_SUCCESS ? fallback : value;
}

static bool stream_of(cublas_handle handle, cu_stream *stream)
{
    static _Atomic(void *) place;
    int (*get)(cublas_handle, cu_stream *);
    void *found = cublas_function("cublasGetStream_v2", handle, &place);
    memcpy(&get, &found, sizeof found);
    return get != NULL && get(handle, stream) == CUBLAS_SUCCESS;
}

/* Return whether the math mode forbids cuBLAS to reduce the precision of products of this type. */
static bool is_exact(int mode, int type)
{
    const int kind = mode & MATH_KIND;
    if (mode < 0)
        return false;
    switch (type) {
    case TSM2_F64:
    case TSM2_C128:
        return kind <= BF16X9_MATH; /* these modes affect single precision only */
    case TSM2_F32:
    case TSM2_C64:
        return kind == DEFAULT_MATH || kind == PEDANTIC_MATH;
    default:
        return kind <= PEDANTIC_MATH;
    }
}

/* Return the reason why the handle's settings do not allow a kernel; NOT_LEFT if they allow it. */
static enum reason reason_of_handle(cublas_handle handle, const struct asked *asked)
{
    static _Atomic(void *) pointers, math, multiprocessors;
    if (setting("cublasGetPointerMode_v2", &pointers, handle, -1) != HOST_POINTERS)
        return DEVICE_FACTORS;
    if (!is_exact(setting("cublasGetMathMode", &math, handle, -1), asked->type))
        return PRECISION;
    if (setting("cublasGetSmCountTarget", &multiprocessors, handle, 0) != 0)
        return FEWER_SMS;
    return NOT_LEFT;
}

/* Return the reason why cuBLAS must compute this call although the kernel is faster; NOT_LEFT if the kernel may. */
static enum reason reason_now(cublas_handle handle, const struct asked *asked)
{
    const enum reason reason = handle == NULL ? NOT_LEFT : reason_of_handle(handle, asked);
    if (reason != NOT_LEFT)
        return reason;
    return asked->alpha == NULL || asked->beta == NULL || is_zero(asked, asked->alpha) || overlaps(asked) ? ZERO : NOT_LEFT;
}

/* Return the reason why cuBLAS computes this call for a measurement; NOT_LEFT if the kernel computes it. If times are
   measured, cuBLAS and the kernel compute the first calls in turns; the first time of cuBLAS is not a sample. */
static enum reason reason_to_measure(struct visit *visit, struct lane *lane, const struct asked *asked)
{
    struct line *line = visit->line;
    if (settings.compared > 0 && atomic_load(&line->compared) < (uint64_t)settings.compared) {
        visit->comparison = begin_comparison(lane, visit->stream, asked);
        if (visit->comparison != NULL)
            return COMPARED;
    }
    const uint64_t of_cublas = atomic_load(&line->left[TIMED]);
    return settings.has_times && of_cublas <= SAMPLES && of_cublas <= atomic_load(&line->taken) ? TIMED : NOT_LEFT;
}

/* Launch the product's kernel and return NOT_LEFT, or return the reason why cuBLAS must compute the product. The handle
   is NULL for cuBLASLt. */
static enum reason visited(struct visit *visit, cublas_handle handle, const struct asked *asked)
{
    enum reason reason;
    struct lane *lane = lane_of(visit->stream, &reason);
    if (lane == NULL)
        return reason;
    visit->line = line_of(asked, lane->device);
    if (visit->line == NULL) { /* no place in the journal: decide for this call only */
        static _Thread_local struct line spare;
        memset(&spare, 0, sizeof spare);
        atomic_store(&spare.decision, -1);
        visit->line = &spare;
        count_without_line(CROWDED);
    }
    struct line *line = visit->line;
    const uint64_t calls = atomic_fetch_add_explicit(&line->calls, 1, memory_order_relaxed);
    const uint64_t taken = atomic_load_explicit(&line->taken, memory_order_relaxed);
    const bool is_watched = (settings.has_times || settings.compared > 0) && line->state != 0;
    const bool is_captured = is_watched && is_capturing(visit->stream), is_measured = is_watched && !is_captured;
    if (is_captured)
        atomic_fetch_add_explicit(&line->captured, 1, memory_order_relaxed);
    reason = asked->unfit != NOT_LEFT ? asked->unfit : decided(lane, asked, line);
    if (reason == NOT_LEFT)
        reason = reason_now(handle, asked);
    if (reason == NOT_LEFT)
        reason = is_measured ? reason_to_measure(visit, lane, asked) : NOT_LEFT;
    if (settings.has_times && is_measured && reason != COMPARED)
        begin_time(visit, lane);
    if (reason == NOT_LEFT)
        reason = start_kernel(lane, visit->stream, asked);
    visit->is_first = reason == NOT_LEFT ? taken == 0 : calls == taken;
    _Atomic uint64_t *count = reason == NOT_LEFT ? &line->taken : &line->left[reason];
    if (atomic_fetch_add_explicit(count, 1, memory_order_relaxed) + 1 == MOST_FAILURES && reason == FAILED)
        atomic_store(&line->decision, FAILED);
    return reason;
}

/* Initialise the visit. Return whether the call is the program's own, with a known type, and there is a driver. */
static bool begin(struct visit *visit, const struct asked *asked)
{
    memset(visit, 0, sizeof *visit);
    read_settings_once();
    if (is_inside++ > 0)
        return false;
    if (driver() == NULL || asked->type < 0) {
        count_without_line(asked->type < 0 ? UNKNOWN : WITHOUT_DRIVER);
        return false;
    }
    return true;
}

bool begin_visit(struct visit *visit, cublas_handle handle, const struct asked *asked)
{
    if (!begin(visit, asked) || !stream_of(handle, &visit->stream))
        return false;
    return visit->is_taken = visited(visit, handle, asked) == NOT_LEFT;
}

bool begin_visit_on(struct visit *visit, cu_stream stream, const struct asked *asked)
{
    if (!begin(visit, asked))
        return false;
    visit->stream = stream;
    return visit->is_taken = visited(visit, NULL, asked) == NOT_LEFT;
}

int end_visit(struct visit *visit, int status)
{
    --is_inside;
    if (visit->waiting != NULL)
        end_time(visit);
    if (visit->comparison != NULL)
        end_comparison(visit->comparison, status == CUBLAS_SUCCESS ? visit->line : NULL);
    return status;
}
