/* Load the pack, the library with the tuned kernels, and create one of its handles for each stream. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "standin.h"

#define MOST_GRAPH_BYTES ((size_t)1 << 30) /* most memory for workspaces of CUDA graphs, which are never freed */
enum { NON_BLOCKING = 1 };
enum { MOST_LANES = 64, STREAM_OF_THREAD = 2 };

#define PACK(X)                                                                                                      \
    X(interface, int, (void))                                                                                        \
    X(status_text, const char *, (tsm2_status status))                                                               \
    X(last_error, const char *, (tsm2_handle handle))                                                                \
    X(create, tsm2_status, (tsm2_handle *handle))                                                                    \
    X(create_beside, tsm2_status, (tsm2_handle other, tsm2_handle *handle))                                          \
    X(set_workspace, tsm2_status, (tsm2_handle handle, void *workspace, size_t bytes))                               \
    X(workspace_size_strided_batched, tsm2_status,                                                                   \
      (tsm2_handle handle, tsm2_type type, tsm2_operation transa, tsm2_operation transb, int64_t m, int64_t n,       \
       int64_t k, const void *A, int64_t lda, int64_t stride_a, const void *B, int64_t ldb, int64_t stride_b,        \
       int64_t ldc, int64_t stride_c, int64_t batch_count, size_t *bytes))                                           \
    X(set_stream, tsm2_status, (tsm2_handle handle, tsm2_stream stream))                                             \
    X(compare_strided_batched, tsm2_status,                                                                          \
      (tsm2_handle handle, tsm2_type type, tsm2_operation transa, tsm2_operation transb, int64_t m, int64_t n,       \
       int64_t k, const void *A, int64_t lda, int64_t stride_a, const void *B, int64_t ldb, int64_t stride_b,        \
       int64_t ldc, int64_t stride_c, int64_t batch_count, double *us, double *cublas_us, int *is_slower))

typedef tsm2_status (*gemm_function)(tsm2_handle handle, tsm2_operation transa, tsm2_operation transb, int64_t m,
                                     int64_t n, int64_t k, const void *alpha, const void *A, int64_t lda,
                                     int64_t stride_a, const void *B, int64_t ldb, int64_t stride_b, const void *beta,
                                     void *C, int64_t ldc, int64_t stride_c, int64_t batch_count);

struct pack {
#define MEMBER(name, result, parameters) result(*name) parameters;
    PACK(MEMBER)
#undef MEMBER
    gemm_function gemm[6]; /* by tsm2_type */
    bool is_whole;
};
static struct pack pack;
static atomic_bool is_pack_known;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static bool find(void *library, const char *symbol, void *function)
{
    void *found = next_dlsym(library, symbol);
    memcpy(function, &found, sizeof found);
    return found != NULL;
}

static struct pack functions_of(void *library)
{
    static const char *const gemms[] = {"tsm2_gemm_f32_strided_batched",  "tsm2_gemm_f64_strided_batched",
                                        "tsm2_gemm_c64_strided_batched",  "tsm2_gemm_c128_strided_batched",
                                        "tsm2_gemm_bf16_strided_batched", "tsm2_gemm_f16_strided_batched"};
    struct pack found = {.is_whole = true};
#define FIND(name, result, parameters) found.is_whole = found.is_whole && find(library, "tsm2_" #name, &found.name);
    PACK(FIND)
#undef FIND
    for (int type = 0; type < 6; ++type)
        found.is_whole = found.is_whole && find(library, gemms[type], &found.gemm[type]);
    found.is_whole = found.is_whole && found.interface() >= TSM2_INTERFACE;
    return found;
}

/* Open the pack and find its functions. dlopen is called without the lock, for the reason given at find_all in
   driver.c. */
static void open_pack(void)
{
    char why[512] = "";
    struct pack found = {.is_whole = false};
    void *library = settings.pack == NULL ? NULL : dlopen(settings.pack, RTLD_NOW | RTLD_LOCAL);
    if (library != NULL)
        found = functions_of(library);
    else if (settings.pack != NULL)
        snprintf(why, sizeof why, "%s", dlerror());
    if (library != NULL && !found.is_whole)
        snprintf(why, sizeof why, "%s is not a library of tsm2-tune, or is too old: export it again", settings.pack);
    pthread_mutex_lock(&lock);
    if (!atomic_load(&is_pack_known)) {
        pack = found;
        atomic_store_explicit(&is_pack_known, true, memory_order_release);
        if (why[0] != '\0')
            tell("all products are left to cuBLAS: %s", why);
    }
    pthread_mutex_unlock(&lock);
}

static struct lane lanes[MOST_LANES];
static _Atomic int lane_count;
static _Thread_local struct lane *last;

/* Return a value that identifies this thread if the stream is the per-thread default stream; else NULL. That stream has
   the same handle value in all threads. cuStreamGetId would distinguish the streams, but invalidates a capture. If the
   handle of a destroyed stream or the address of an ended thread is reused, the new stream gets the same lane: pack and
   scratch_of then wait for the old stream's kernels. */
static const void *thread_of(cu_stream stream)
{
    return (uintptr_t)stream == STREAM_OF_THREAD ? &last : NULL;
}

static bool is_lane_of(const struct lane *lane, unsigned long long context, cu_stream stream)
{
    return lane->context == context && lane->stream == stream && lane->thread == thread_of(stream);
}

static struct lane *known_lane(unsigned long long context, cu_stream stream)
{
    const int count = atomic_load_explicit(&lane_count, memory_order_acquire);
    for (int at = 0; at < count; ++at)
        if (is_lane_of(&lanes[at], context, stream))
            return &lanes[at];
    return NULL;
}

/* Create one of the pack's handles for the context. It shares loaded kernels with the context's other handles. Return
   NULL if that fails, with a message the first time. */
static tsm2_handle new_handle(unsigned long long context)
{
    tsm2_handle handle = NULL;
    const int count = atomic_load(&lane_count);
    for (int at = 0; at < count; ++at) {
        if (lanes[at].context != context)
            continue;
        if (lanes[at].handle != NULL)
            pack.create_beside(lanes[at].handle, &handle);
        return handle; /* an earlier failure in this context was reported */
    }
    const tsm2_status status = pack.create(&handle);
    if (status != TSM2_SUCCESS)
        tell("products of a GPU are left to cuBLAS: %s", pack.status_text(status));
    return handle;
}

/* Add a lane. The caller must hold the lock. Return NULL if all lanes are used, or on failure. */
static struct lane *new_lane(unsigned long long context, cu_stream stream)
{
    const int count = atomic_load(&lane_count);
    if (count == MOST_LANES)
        return NULL;
    struct lane *lane = &lanes[count];
    if (driver()->current_device(&lane->device) != 0 || pthread_mutex_init(&lane->lock, NULL) != 0)
        return NULL;
    lane->context = context;
    lane->stream = stream;
    lane->thread = thread_of(stream);
    lane->handle = pack.is_whole ? new_handle(context) : NULL;
    atomic_store_explicit(&lane_count, count + 1, memory_order_release);
    return lane;
}

/* Return an existing lane of the context, to share if no lane can be added. Products that use its workspace then wait
   for each other. */
static struct lane *shared_lane(unsigned long long context, cu_stream stream)
{
    const int first = (int)(((uintptr_t)stream >> 4) % MOST_LANES);
    for (int step = 0; step < MOST_LANES; ++step) {
        struct lane *lane = &lanes[(first + step) % MOST_LANES];
        if (lane->context == context)
            return lane;
    }
    return NULL;
}

struct lane *lane_of(cu_stream stream, enum reason *reason)
{
    unsigned long long context;
    if (!atomic_load_explicit(&is_pack_known, memory_order_acquire))
        open_pack();
    *reason = FAILED;
    if (driver()->context_id(NULL, &context) != 0)
        return NULL;
    if ((uintptr_t)stream == LEGACY_STREAM)
        stream = NULL; /* both handles mean the legacy stream */
    if (last != NULL && is_lane_of(last, context, stream))
        return last;
    struct lane *lane = known_lane(context, stream);
    if (lane == NULL && atomic_load(&lane_count) < MOST_LANES) {
        pthread_mutex_lock(&lock);
        lane = known_lane(context, stream);
        if (lane == NULL)
            lane = new_lane(context, stream);
        pthread_mutex_unlock(&lock);
    }
    *reason = CROWD;
    if (lane == NULL)
        return shared_lane(context, stream);
    return last = lane;
}

enum reason decided(struct lane *lane, const struct asked *asked, struct line *line)
{
    int decision = atomic_load_explicit(&line->decision, memory_order_acquire);
    if (decision >= 0)
        return (enum reason)decision;
    int is_slower = 1;
    double us = 0, cublas_us = 0;
    if (lane->handle == NULL) {
        decision = NO_PACK;
    } else {
        pthread_mutex_lock(&lane->lock);
        const tsm2_status status =
            pack.compare_strided_batched(lane->handle, (tsm2_type)asked->type, (tsm2_operation)asked->transa,
                                         (tsm2_operation)asked->transb, asked->m, asked->n, asked->k, asked->A,
                                         asked->lda, asked->stride_a, asked->B, asked->ldb, asked->stride_b, asked->ldc,
                                         asked->stride_c, asked->batches, &us, &cublas_us, &is_slower);
        pthread_mutex_unlock(&lane->lock);
        if (status != TSM2_SUCCESS && status != TSM2_NOT_SUPPORTED)
            return ZERO; /* an invalid argument, such as an address; other calls of the line may be valid */
        decision = status == TSM2_NOT_SUPPORTED ? NO_KERNEL : is_slower ? EXPECTED : NOT_LEFT;
        line->expected_us = us;
        line->cublas_expected_us = cublas_us;
    }
    int before = -1; /* another thread, or a comparison, may have set the decision meanwhile */
    if (!atomic_compare_exchange_strong(&line->decision, &before, decision))
        decision = before;
    return (enum reason)decision;
}

static tsm2_status multiply(struct lane *lane, const struct asked *asked)
{
    double alpha[2], beta[2]; /* room for complex numbers, see pack_factor */
    return pack.gemm[asked->type](lane->handle, (tsm2_operation)asked->transa, (tsm2_operation)asked->transb, asked->m,
                                  asked->n, asked->k, pack_factor(asked, asked->alpha, alpha), asked->A, asked->lda,
                                  asked->stride_a, asked->B, asked->ldb, asked->stride_b,
                                  pack_factor(asked, asked->beta, beta), asked->C, asked->ldc, asked->stride_c,
                                  asked->batches);
}

cu_stream aside_of(struct lane *lane)
{
    pthread_mutex_lock(&lock);
    const int count = atomic_load(&lane_count);
    for (int at = 0; at < count && lane->aside == NULL; ++at)
        if (lanes[at].context == lane->context)
            lane->aside = lanes[at].aside;
    if (lane->aside == NULL) {
        const int mode = relax_captures();
        if (driver()->create_stream(&lane->aside, NON_BLOCKING) != 0)
            lane->aside = NULL;
        restore_captures(mode);
    }
    const cu_stream aside = lane->aside;
    pthread_mutex_unlock(&lock);
    return aside;
}

static _Atomic size_t graph_bytes; /* memory allocated for CUDA graphs; it is not known when a graph is destroyed */

/* Allocate a workspace for a graph. Return its address; 0 if memory is short or MOST_GRAPH_BYTES would be exceeded. */
static cu_pointer graph_workspace(size_t bytes)
{
    cu_pointer room = 0;
    if (bytes == 0 || bytes > MOST_GRAPH_BYTES)
        return 0;
    if (atomic_fetch_add(&graph_bytes, bytes) > MOST_GRAPH_BYTES - bytes || driver()->allocate(&room, bytes) != 0) {
        atomic_fetch_sub(&graph_bytes, bytes);
        return 0;
    }
    return room;
}

/* Launch a kernel that needs a workspace on a stream that is being captured, with a workspace for this graph only. The
   caller has locked the lane and called relax_captures. */
static tsm2_status multiply_in_graph(struct lane *lane, cu_stream stream, const struct asked *asked)
{
    size_t bytes = 0;
    pack.workspace_size_strided_batched(lane->handle, (tsm2_type)asked->type, (tsm2_operation)asked->transa,
                                        (tsm2_operation)asked->transb, asked->m, asked->n, asked->k, asked->A,
                                        asked->lda, asked->stride_a, asked->B, asked->ldb, asked->stride_b, asked->ldc,
                                        asked->stride_c, asked->batches, &bytes);
    const cu_stream aside = aside_of(lane);
    const cu_pointer room = aside == NULL ? 0 : graph_workspace(bytes);
    if (room == 0)
        return TSM2_NOT_SUPPORTED;
    pack.set_stream(lane->handle, aside);
    tsm2_status status = pack.set_workspace(lane->handle, (void *)(uintptr_t)room, bytes);
    pack.set_stream(lane->handle, stream);
    if (status == TSM2_SUCCESS)
        status = multiply(lane, asked);
    pack.set_workspace(lane->handle, NULL, 0);
    if (status != TSM2_SUCCESS) {
        driver()->release(room);
        atomic_fetch_sub(&graph_bytes, bytes);
    }
    return status;
}

static enum reason reason_of(tsm2_status status)
{
    switch (status) {
    case TSM2_SUCCESS:
        return NOT_LEFT;
    case TSM2_NOT_SUPPORTED:
        return CAPTURED;
    case TSM2_OUT_OF_MEMORY:
        return NO_MEMORY;
    case TSM2_INVALID_VALUE: /* cuBLAS will report it */
        return ZERO;
    default:
        return FAILED;
    }
}

/* Launch the kernel that computes all of C. The caller has locked the lane. */
static enum reason start_whole(struct lane *lane, cu_stream stream, const struct asked *asked)
{
    pack.set_stream(lane->handle, stream);
    tsm2_status status = multiply(lane, asked);
    if (status == TSM2_NOT_SUPPORTED) { /* since there is a kernel, the reason is that the stream is being captured */
        const int mode = relax_captures();
        status = multiply_in_graph(lane, stream, asked);
        restore_captures(mode);
    }
    const enum reason reason = reason_of(status);
    if (reason == FAILED)
        tell("a product is left to cuBLAS: %s", pack.last_error(lane->handle));
    return reason;
}

enum reason start_kernel(struct lane *lane, cu_stream stream, const struct asked *asked)
{
    const bool is_own = lane->stream == ((uintptr_t)stream == LEGACY_STREAM ? NULL : stream);
    enum reason reason = CROWD; /* streams that share a lane must not share its scratch memory */
    pthread_mutex_lock(&lane->lock);
    if (asked->part == WHOLE_C)
        reason = start_whole(lane, stream, asked);
    else if (is_own)
        reason = is_capturing(stream) ? CAPTURED : start_triangle(lane, stream, asked, start_whole);
    pthread_mutex_unlock(&lane->lock);
    return reason;
}
