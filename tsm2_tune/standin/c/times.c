/* GPU times of products, by events on their streams, read when they have passed. */

#define _GNU_SOURCE
#include <stdlib.h>
#include <unistd.h>

#include "standin.h"

enum { MOST_WAITING = 512, NOT_READY = 600 }; /* CUDA_ERROR_NOT_READY */

enum state { FREE, BEGUN, ENDED };
struct waiting {
    enum state state;
    unsigned long long context; /* of the events; 0: there are none */
    cu_event begin, end;
    struct line *line;
    bool is_first, is_taken;
};
static struct waiting waiting[MOST_WAITING];
static unsigned oldest, newest; /* places that are not free, in their order; they are counted on, without an end */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Whether this process is the one that takes times, which the first to begin is. A child that it forks later has a copy of
   what waits, which would count twice, and of a lock that a thread may have held, which nobody there gives back. */
static bool is_own(void)
{
    static _Atomic pid_t own;
    pid_t found = 0;
    return atomic_compare_exchange_strong(&own, &found, getpid()) || found == getpid();
}

static void add_time(const struct waiting *one, uint64_t ns)
{
    struct line *line = one->line;
    if (one->is_first) {
        atomic_store(&line->first_ns, ns);
        return;
    }
    atomic_fetch_add(one->is_taken ? &line->taken_ns : &line->cublas_ns, ns);
    atomic_fetch_add(one->is_taken ? &line->taken_timed : &line->cublas_timed, 1);
}

/* Reads times, from the oldest to the first that has not passed. The lock is held. */
static void read_times(void)
{
    const int mode = relax_captures();
    for (; oldest != newest; ++oldest) {
        struct waiting *one = &waiting[oldest % MOST_WAITING];
        const cu_result result = one->state == ENDED ? driver()->query_event(one->end) : 0;
        float ms;
        if (one->state == BEGUN || result == NOT_READY)
            break;
        if (one->state == ENDED && result == 0 && driver()->elapsed(&ms, one->begin, one->end) == 0)
            add_time(one, (uint64_t)((double)ms * 1e6));
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

/* Events of the context. */
static bool make_events(struct waiting *one, unsigned long long context)
{
    if (one->context == context)
        return true;
    if (one->context != 0) {
        driver()->destroy_event(one->begin);
        driver()->destroy_event(one->end);
    }
    one->context = 0;
    if (driver()->create_event(&one->begin, 0) != 0 || driver()->create_event(&one->end, 0) != 0)
        return false;
    one->context = context;
    return true;
}

void begin_time(struct visit *visit)
{
    static bool is_watching;
    unsigned long long context;
    if (!is_own() || driver()->context_id(NULL, &context) != 0)
        return;
    pthread_mutex_lock(&lock);
    if (!is_watching)
        is_watching = atexit(read_the_last) == 0; /* after the driver's own, so that it runs before that */
    read_times();
    struct waiting *one = &waiting[newest % MOST_WAITING];
    if (newest - oldest < MOST_WAITING && make_events(one, context) &&
        driver()->record_event(one->begin, visit->stream) == 0) {
        ++newest;
        one->state = BEGUN;
        one->line = visit->line;
        visit->waiting = one;
    }
    pthread_mutex_unlock(&lock);
}

void end_time(struct visit *visit)
{
    struct waiting *one = visit->waiting;
    const bool has_ended = driver()->record_event(one->end, visit->stream) == 0;
    pthread_mutex_lock(&lock);
    one->is_taken = visit->is_taken;
    one->is_first = visit->is_first;
    one->state = has_ended ? ENDED : FREE;
    pthread_mutex_unlock(&lock);
}
