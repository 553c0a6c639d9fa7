/* The workspace of kernels that split k.

   Launches on one stream run in order, so one workspace serves them all. A kernel leaves the counters 0, as it finds
   them. They are apart from the partial sums of any product. */

#include "handle.h"

enum {
    COUNTERS_SHARE = 16, /* a sixteenth of a caller's workspace is for counters: a kernel needs 4 bytes a tile, and
                            one partial sum or more for each element of a tile */
    ALIGNMENT = 16,
    GRANULARITY = 256,
};
#define ID_OF_LEGACY (~0ull) /* no other stream's */

static uint64_t rounded_up(uint64_t bytes, uint64_t to) { return (bytes + to - 1) / to * to; }

static struct workspace divided_workspace(cu_pointer address, uint64_t bytes)
{
    const uint64_t counters_bytes = bytes / COUNTERS_SHARE / ALIGNMENT * ALIGNMENT;
    const uint64_t partials_bytes = (bytes - counters_bytes) / ALIGNMENT * ALIGNMENT;
    const struct workspace divided = {address, address + partials_bytes, partials_bytes, counters_bytes};
    return divided;
}

uint64_t whole_workspace_bytes(uint64_t partials_bytes, uint64_t counters_bytes)
{
    if (partials_bytes == 0)
        return 0;
    const uint64_t by_partials = partials_bytes / (COUNTERS_SHARE - 1) * COUNTERS_SHARE + 2 * COUNTERS_SHARE;
    const uint64_t by_counters = rounded_up(counters_bytes, ALIGNMENT) * COUNTERS_SHARE;
    return rounded_up(by_partials > by_counters ? by_partials : by_counters, GRANULARITY);
}

static int holds(const struct workspace *workspace, uint64_t partials_bytes, uint64_t counters_bytes)
{
    return workspace->partials_bytes >= partials_bytes && workspace->counters_bytes >= counters_bytes;
}

/* Replace the handle's own workspace. The counters are zeroed on the stream. */
static tsm2_status allocate(tsm2_handle handle, uint64_t partials_bytes, uint64_t counters_bytes)
{
    const struct driver *driver = &handle->driver;
    struct workspace *own = &handle->own;
    const struct workspace none = {0, 0, 0, 0};
    struct workspace made = {0, 0, partials_bytes, counters_bytes};
    if (own->partials_bytes != 0) {
        TRY(answered(handle, "cuStreamSynchronize", driver->await_stream(handle->stream)));
        TRY(answered(handle, "cuMemFree", driver->release(own->partials)));
        own->partials_bytes = 0; /* never freed twice */
        TRY(answered(handle, "cuMemFree", driver->release(own->counters)));
        *own = none;
    }
    int mode = CU_CAPTURE_RELAXED;
    driver->exchange_capture_mode(&mode);
    cu_result result = driver->allocate(&made.partials, partials_bytes);
    if (result == 0) {
        result = driver->allocate(&made.counters, counters_bytes);
        if (result == 0)
            result = driver->set_words(made.counters, 0, counters_bytes / 4, handle->stream);
        if (result != 0)
            driver->release(made.partials);
        if (result != 0 && made.counters != 0)
            driver->release(made.counters);
    }
    driver->exchange_capture_mode(&mode);
    if (result == CU_OUT_OF_MEMORY)
        return fail(handle, TSM2_OUT_OF_MEMORY, "the GPU has no room for the %llu bytes in which a kernel splits k",
                    (unsigned long long)(partials_bytes + counters_bytes));
    TRY(answered(handle, "cuMemAlloc", result));
    *own = made;
    return TSM2_SUCCESS;
}

tsm2_status take_workspace(tsm2_handle handle, uint64_t partials_bytes, uint64_t counters_bytes,
                           struct workspace *taken)
{
    const struct driver *driver = &handle->driver;
    if (handle->given.partials_bytes != 0) {
        if (!holds(&handle->given, partials_bytes, counters_bytes))
            return fail(handle, TSM2_WORKSPACE_TOO_SMALL, "this product needs a workspace of %llu bytes",
                        (unsigned long long)whole_workspace_bytes(partials_bytes, counters_bytes));
        *taken = handle->given;
        return TSM2_SUCCESS;
    }
    const uintptr_t stream = (uintptr_t)handle->stream;
    unsigned long long id = stream;
    if (stream <= LEGACY_STREAM) {
        id = ID_OF_LEGACY;
    } else {
        int is_capturing = 0;
        TRY(answered(handle, "cuStreamIsCapturing", driver->stream_is_capturing(handle->stream, &is_capturing)));
        if (is_capturing)
            return fail(handle, TSM2_NOT_SUPPORTED,
                        "this product needs a workspace, which a CUDA graph has from the caller: tsm2_set_workspace");
        if (driver->stream_id != NULL) /* unlike a handle it is never reused */
            TRY(answered(handle, "cuStreamGetId", driver->stream_id(handle->stream, &id)));
    }
    struct workspace *own = &handle->own;
    if (own->partials_bytes != 0 && handle->own_stream_id != id)
        TRY(answered(handle, "cuCtxSynchronize", driver->await_context()));
    if (!holds(own, partials_bytes, counters_bytes))
        TRY(allocate(handle, partials_bytes > own->partials_bytes ? partials_bytes : own->partials_bytes,
                     counters_bytes > own->counters_bytes ? counters_bytes : own->counters_bytes));
    handle->own_stream_id = id;
    *taken = *own;
    return TSM2_SUCCESS;
}

static tsm2_status zero_counters(tsm2_handle handle, const struct workspace *workspace)
{
    const struct driver *driver = &handle->driver;
    const size_t words = workspace->counters_bytes / 4;
    TRY(answered(handle, "cuMemsetD32Async", driver->set_words(workspace->counters, 0, words, handle->stream)));
    return answered(handle, "cuStreamSynchronize", driver->await_stream(handle->stream));
}

EXPORTED tsm2_status tsm2_set_workspace(tsm2_handle handle, void *workspace, size_t bytes)
{
    const struct workspace none = {0, 0, 0, 0};
    if (handle == NULL)
        return TSM2_INVALID_VALUE;
    handle->error[0] = '\0';
    if ((uintptr_t)workspace % 16 != 0)
        return fail(handle, TSM2_INVALID_VALUE, "argument 2, workspace: its address is not a multiple of 16 bytes");
    const struct workspace given = divided_workspace((uintptr_t)workspace, bytes);
    if (workspace != NULL && given.counters_bytes == 0)
        return fail(handle, TSM2_INVALID_VALUE, "argument 3, bytes: expected at least 256");
    handle->given = none;
    if (workspace == NULL)
        return TSM2_SUCCESS;
    int has_entered;
    TRY(enter(handle, &has_entered));
    TRY(leave(handle, has_entered, zero_counters(handle, &given)));
    handle->given = given;
    return TSM2_SUCCESS;
}
