/* The journal: lines of products, in memory, or in a file that stays when the process ends in whatever way. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "standin.h"

static struct journal *_Atomic journal;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The file of this process in the journal's folder, open; -1: none. */
static int open_file(void)
{
    char path[PATH_MAX];
    if (settings.journal == NULL)
        return -1;
    const int file = snprintf(path, sizeof path, "%s/%ld-XXXXXX", settings.journal, (long)getpid()) < (int)sizeof path
                         ? mkostemp(path, O_CLOEXEC)
                         : -1;
    if (file >= 0 && ftruncate(file, (off_t)sizeof(struct journal)) == 0)
        return file;
    tell("cannot write what was seen to %s: %s", settings.journal, strerror(errno));
    if (file >= 0)
        close(file);
    return -1;
}

/* A new journal; NULL without memory. */
static struct journal *made(void)
{
    const int file = open_file();
    const int kind = file < 0 ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED;
    struct journal *new = mmap(NULL, sizeof *new, PROT_READ | PROT_WRITE, kind, file, 0);
    if (file >= 0)
        close(file);
    if (new == MAP_FAILED)
        return NULL;
    new->line_bytes = sizeof *new->at;
    new->lines = LINES;
    new->process = getpid();
    snprintf(new->program, sizeof new->program, "%s", program_invocation_short_name);
    memcpy(new->magic, "TSM2JRN1", sizeof new->magic);
    return new;
}

/* That of this process, and of those that it forks: the memory is shared. */
static struct journal *own(void)
{
    struct journal *found = atomic_load_explicit(&journal, memory_order_acquire);
    if (found != NULL)
        return found;
    pthread_mutex_lock(&lock);
    found = atomic_load(&journal);
    if (found == NULL && (found = made()) != NULL)
        atomic_store_explicit(&journal, found, memory_order_release);
    pthread_mutex_unlock(&lock);
    return found;
}

static bool is_gram(const struct asked *asked)
{
    return asked->A == asked->B && asked->lda == asked->ldb && asked->m == asked->n &&
           (asked->transa == TSM2_N) != (asked->transb == TSM2_N);
}

static bool is_of(const struct line *line, const struct asked *asked, int device)
{
    return line->m == asked->m && line->n == asked->n && line->k == asked->k && line->type == asked->type &&
           line->transa == asked->transa && line->transb == asked->transb && line->lda == asked->lda &&
           line->ldb == asked->ldb && line->ldc == asked->ldc && line->batches == asked->batches &&
           line->routine == (int)asked->routine && line->device == device && line->is_gram == is_gram(asked);
}

static uint64_t hash_of(const struct asked *asked, int device)
{
    const int64_t words[] = {asked->m,   asked->n,   asked->k,       asked->lda, asked->ldb, asked->ldc, asked->batches,
                             asked->type, asked->transa * 4 + asked->transb, asked->routine, device, is_gram(asked)};
    uint64_t hash = 0;
    for (size_t at = 0; at < sizeof words / sizeof *words; ++at)
        hash = (hash ^ (uint64_t)words[at]) * 0x9E3779B97F4A7C15u, hash ^= hash >> 29;
    return hash;
}

static void write_line(struct line *line, const struct asked *asked, int device)
{
    line->routine = asked->routine;
    line->type = asked->type;
    line->transa = asked->transa;
    line->transb = asked->transb;
    line->device = device;
    line->is_gram = is_gram(asked);
    line->m = asked->m;
    line->n = asked->n;
    line->k = asked->k;
    line->lda = asked->lda;
    line->ldb = asked->ldb;
    line->ldc = asked->ldc;
    line->batches = asked->batches;
    atomic_store(&line->decision, -1);
}

struct line *line_of(const struct asked *asked, int device)
{
    struct journal *found = own();
    if (found == NULL)
        return NULL;
    const uint64_t hash = hash_of(asked, device);
    for (uint64_t step = 0; step < LINES; ++step) {
        struct line *line = &found->at[(hash + step) % LINES];
        uint32_t state = atomic_load_explicit(&line->state, memory_order_acquire);
        if (state == 0 && atomic_compare_exchange_strong(&line->state, &state, 1)) {
            write_line(line, asked, device);
            atomic_store_explicit(&line->state, 2, memory_order_release);
            return line;
        }
        while (state == 1) /* another thread writes it: a few numbers */
            state = atomic_load_explicit(&line->state, memory_order_acquire);
        if (is_of(line, asked, device))
            return line;
    }
    return NULL;
}

void count_crowded(void)
{
    struct journal *found = own();
    if (found != NULL)
        atomic_fetch_add(&found->crowded, 1);
}
