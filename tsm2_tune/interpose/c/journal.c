/* The journal: a hash table with a line for all calls with equal routine, types, shape, leading dimensions and strides.
   It is in memory, or in a memory-mapped file, which survives a crash. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "product.h"
#include "standin.h"

enum {
    MOST_TRIED = 32,  /* most probes of the hash table: more would take as long as a product */
    MOST_TURNS = 10000 /* most reads of the state of a line that another thread is writing: that may have been killed */
};

static struct journal *_Atomic journal;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Reserve the file's disk space, because writing to a mapped page without disk space kills the process. Return 0 or an
   errno. */
static int set_aside(int file)
{
    struct rlimit largest;
    if (getrlimit(RLIMIT_FSIZE, &largest) == 0 && largest.rlim_cur < sizeof(struct journal))
        return EFBIG; /* a larger file would raise SIGXFSZ */
    int error;
    do
        error = posix_fallocate(file, 0, (off_t)sizeof(struct journal));
    while (error == EINTR);
    return error;
}

/* Create and map a file for this process in the journal's folder. On failure return NULL after a message. There is no
   message if the folder does not exist, because then its reader has ended. */
static struct journal *in_file(void)
{
    char path[PATH_MAX];
    void *mapped = MAP_FAILED;
    const int bytes = snprintf(path, sizeof path, "%s/%ld-XXXXXX", settings.journal, (long)getpid());
    errno = ENAMETOOLONG;
    const int file = bytes < (int)sizeof path ? mkostemp(path, O_CLOEXEC) : -1;
    int error = file < 0 ? errno : set_aside(file);
    if (error == 0) {
        mapped = mmap(NULL, sizeof(struct journal), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        error = mapped == MAP_FAILED ? errno : 0;
    }
    if (file >= 0)
        close(file);
    if (error == 0)
        return mapped;
    if (file >= 0)
        unlink(path);
    if (error != ENOENT)
        tell("products of process %ld are not in the report, because nothing can be written to %s: %s", (long)getpid(),
             settings.journal, strerror(error));
    return NULL;
}

/* Create a journal, in a file or else in memory. Return NULL if memory is short. */
static struct journal *made(void)
{
    struct journal *new = settings.journal == NULL ? NULL : in_file();
    if (new == NULL)
        new = mmap(NULL, sizeof *new, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (new == MAP_FAILED)
        return NULL;
    new->line_bytes = sizeof *new->at;
    new->lines = LINES;
    new->process = getpid();
    snprintf(new->program, sizeof new->program, "%s", program_invocation_short_name);
    memcpy(new->magic, "TSM2JRN1", sizeof new->magic);
    return new;
}

/* Return the journal, which forked processes share; NULL if it cannot be created. */
static struct journal *own(void)
{
    static bool was_tried;
    struct journal *found = atomic_load_explicit(&journal, memory_order_acquire);
    if (found != NULL)
        return found;
    pthread_mutex_lock(&lock);
    found = atomic_load(&journal);
    if (found == NULL && !was_tried)
        atomic_store_explicit(&journal, found = made(), memory_order_release);
    was_tried = true;
    pthread_mutex_unlock(&lock);
    return found;
}

static bool is_gram(const struct asked *asked)
{
    return asked->A == asked->B && asked->lda == asked->ldb && asked->stride_a == asked->stride_b && asked->m == asked->n &&
           (asked->transa == TSM2_N) != (asked->transb == TSM2_N);
}

static bool is_of(const struct line *line, const struct asked *asked, int device)
{
    return line->m == asked->m && line->n == asked->n && line->k == asked->k && line->type == asked->type &&
           line->transa == asked->transa && line->transb == asked->transb && line->lda == asked->lda &&
           line->ldb == asked->ldb && line->ldc == asked->ldc && line->batches == asked->batches &&
           line->stride_a == asked->stride_a && line->stride_b == asked->stride_b && line->stride_c == asked->stride_c &&
           line->routine == (int)asked->routine && line->device == device && line->is_gram == is_gram(asked);
}

static uint64_t hash_of(const struct asked *asked, int device)
{
    const int64_t words[] = {asked->m, asked->n, asked->k, asked->lda, asked->ldb, asked->ldc, asked->batches,
                             asked->stride_a, asked->stride_b, asked->stride_c, asked->type,
                             asked->transa * 4 + asked->transb, asked->routine, device, is_gram(asked)};
    uint64_t hash = 0;
    for (size_t at = 0; at < sizeof words / sizeof *words; ++at)
        hash = (hash ^ (uint64_t)words[at]) * 0x9E3779B97F4A7C15u, hash ^= hash >> 29;
    return hash;
}

/* Set the extents of the one product that the batch makes up; else those of each product. */
static void write_merged(struct line *line, const struct asked *asked)
{
    line->merged_m = asked->m, line->merged_n = asked->n;
    if (asked->batches < 2 || asked->m < 1 || asked->n < 1 || asked->k < 1)
        return;
    const struct call call = {
        STRIDED, (tsm2_type)asked->type, (tsm2_operation)asked->transa, (tsm2_operation)asked->transb, asked->m, asked->n,
        asked->k, NULL, asked->A, asked->lda, asked->B, asked->ldb, NULL, NULL, asked->ldc, asked->stride_a,
        asked->stride_b, asked->stride_c, asked->batches};
    const struct core_product product = product_of(&call);
    for (int merged = CORE_ROWS; merged <= CORE_COLUMNS; ++merged) {
        const struct core_product one = core_merged_product(&product, (enum core_merged)merged);
        if (one.batch_count == 1)
            line->merged_m = one.m, line->merged_n = one.n;
    }
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
    line->stride_a = asked->stride_a;
    line->stride_b = asked->stride_b;
    line->stride_c = asked->stride_c;
    write_merged(line, asked);
    atomic_store(&line->decision, -1);
}

struct line *line_of(const struct asked *asked, int device)
{
    struct journal *found = own();
    if (found == NULL)
        return NULL;
    const uint64_t hash = hash_of(asked, device), stride = hash >> 32 | 1; /* odd, so it reaches all places */
    for (uint64_t step = 0; step < MOST_TRIED; ++step) {
        struct line *line = &found->at[(hash + step * stride) % LINES];
        uint32_t state = atomic_load_explicit(&line->state, memory_order_acquire);
        if (state == 0 && atomic_compare_exchange_strong(&line->state, &state, 1)) {
            write_line(line, asked, device);
            atomic_store_explicit(&line->state, 2, memory_order_release);
            return line;
        }
        for (int turn = 0; state == 1 && turn < MOST_TURNS; ++turn) /* another thread is writing it */
            state = atomic_load_explicit(&line->state, memory_order_acquire);
        if (state == 2 && is_of(line, asked, device))
            return line;
    }
    return NULL;
}

void count_without_line(enum uncounted why)
{
    struct journal *found = own();
    if (found != NULL)
        atomic_fetch_add_explicit(&found->uncounted[why], 1, memory_order_relaxed);
}
