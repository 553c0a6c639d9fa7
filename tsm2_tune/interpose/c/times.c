/* Measure the GPU times of products with CUDA events, which are read later.

   If the stream is idle, the time between the events before and after a product includes host time: cuBLAS allocates a
   workspace, loads a kernel and launches it meanwhile. Therefore another event is recorded right after the launch, on a
   stream without work. The product's GPU time begins at this event or at the event before the product, whichever is
   later. */

#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "standin.h"

enum { MOST_WAITING = 512, NOT_READY = 600 }; /* CUDA_ERROR_NOT_READY */

enum state { FREE, BEGUN, ENDED };
struct waiting {
    enum state state;
    unsigned long long context; /* id of the events' context; 0: no events */
    cu_event begin, launched, end;
    cu_stream aside;
    struct line *line;
    bool is_first, is_taken;
};
static struct waiting waiting[MOST_WAITING];
static unsigned oldest, newest; /* the used range of the ring buffer; both only grow */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Return whether this process measures times: it is the first one that called this function, and not a fork of it. A
   forked child has copies of the pending events, which would be counted twice, and of a lock that may never be
   unlocked. */
static bool is_own(void)
{
    static _Atomic pid_t own;
    pid_t found = 0;
    return atomic_compare_exchange_strong(&own, &found, getpid()) || found == getpid();
}

static int by_number(const void *one, const void *other)
{
    const uint32_t x = *(const uint32_t *)one, y = *(const uint32_t *)other;
    return (x > y) - (x < y);
}

static uint32_t median(const uint32_t *samples)
{
    uint32_t sorted[SAMPLES];
    memcpy(sorted, samples, sizeof sorted);
    qsort(sorted, SAMPLES, sizeof *sorted, by_number);
    return sorted[SAMPLES / 2];
}

/* Let cuBLAS compute the line's products if the kernel's median time is longer than that of cuBLAS. */
static void judge(struct line *line)
{
    int taken = NOT_LEFT;
    if (line->sampled[BY_CUBLAS] == SAMPLES && line->sampled[BY_KERNEL] == SAMPLES &&
        median(line->sample_ns[BY_KERNEL]) > median(line->sample_ns[BY_CUBLAS]))
        atomic_compare_exchange_strong(&line->decision, &taken, SLOWER);
}

/* Add a product's times to its line: `stream_ms` from the event before the product to its end, `launched_ms` from the
   event after the launch to its end. The caller holds the lock. */
static void add_time(const struct waiting *one, float stream_ms, float launched_ms)
{
    struct line *line = one->line;
    const float gpu_ms = launched_ms < 0 ? 0 : launched_ms < stream_ms ? launched_ms : stream_ms;
    const enum way way = one->is_taken ? BY_KERNEL : BY_CUBLAS;
    const uint64_t gpu_ns = (uint64_t)((double)gpu_ms * 1e6);
    if (one->is_first) {
        if (way == BY_CUBLAS || line->first_ns == 0)
            atomic_store(&line->first_ns, gpu_ns);
        return;
    }
    atomic_fetch_add(&line->gpu_ns, gpu_ns);
    atomic_fetch_add(&line->timed, 1);
    if (line->sampled[way] == SAMPLES)
        return;
    line->sample_ns[way][line->sampled[way]] = (uint32_t)fmin((double)stream_ms * 1e6, UINT32_MAX);
    atomic_fetch_add(&line->sampled[way], 1);
    judge(line);
}

/* Read the events of finished products, oldest first. The caller holds the lock. */
static void read_times(void)
{
    const int mode = relax_captures();
    for (; oldest != newest; ++oldest) {
        struct waiting *one = &waiting[oldest % MOST_WAITING];
        const cu_result launched = one->state == ENDED ? driver()->query_event(one->launched) : 0;
        const cu_result end = one->state == ENDED ? driver()->query_event(one->end) : 0;
        float stream_ms, launched_ms;
        if (one->state == BEGUN || launched == NOT_READY || end == NOT_READY)
            break;
        if (one->state == ENDED && launched == 0 && end == 0 &&
            driver()->elapsed(&stream_ms, one->begin, one->end) == 0 &&
            driver()->elapsed(&launched_ms, one->launched, one->end) == 0)
            add_time(one, stream_ms, launched_ms);
        one->state = FREE;
    }
    restore_captures(mode);
}

static void read_the_last(void)
{
    if (!is_own())
        return;
    pthread_mutex_lock(&lock);
    read_times();
    pthread_mutex_unlock(&lock);
}

/* Create the three events in the context, unless they exist. Return whether that succeeded. */
static bool make_events(struct waiting *one, unsigned long long context)
{
    if (one->context == context)
        return true;
    if (one->context != 0) {
        driver()->destroy_event(one->begin);
        driver()->destroy_event(one->launched);
        driver()->destroy_event(one->end);
    }
    one->context = 0;
    if (driver()->create_event(&one->begin, 0) != 0 || driver()->create_event(&one->launched, 0) != 0 ||
        driver()->create_event(&one->end, 0) != 0)
        return false;
    one->context = context;
    return true;
}

void begin_time(struct visit *visit, struct lane *lane)
{
    static bool is_watching;
    if (!is_own())
        return;
    const cu_stream aside = aside_of(lane);
    if (aside == NULL)
        return;
    pthread_mutex_lock(&lock);
    if (!is_watching)
        is_watching = atexit(read_the_last) == 0; /* registered after the driver's handler, so it runs first */
    read_times();
    struct waiting *one = &waiting[newest % MOST_WAITING];
    if (newest - oldest < MOST_WAITING && make_events(one, lane->context) &&
        driver()->record_event(one->begin, visit->stream) == 0) {
        ++newest;
        one->state = BEGUN;
        one->line = visit->line;
        one->aside = aside;
        visit->waiting = one;
    }
    pthread_mutex_unlock(&lock);
}

void end_time(struct visit *visit)
{
    struct waiting *one = visit->waiting;
    const bool has_ended = driver()->record_event(one->launched, one->aside) == 0 &&
                           driver()->record_event(one->end, visit->stream) == 0;
    pthread_mutex_lock(&lock);
    one->is_taken = visit->is_taken;
    one->is_first = visit->is_first;
    one->state = has_ended ? ENDED : FREE;
    pthread_mutex_unlock(&lock);
}
