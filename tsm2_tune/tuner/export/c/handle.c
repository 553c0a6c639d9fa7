/* Handles: made, ended, and what a program sets in them. */

#include "handle.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exported.h"

static _Thread_local char why_none[ERROR_BYTES]; /* why this thread's last call that makes a handle made none; or "" */

EXPORTED const char *tsm2_status_text(tsm2_status status)
{
    static const char *const texts[] = {
        "success",
        "an argument does not fit: tsm2_last_error names it",
        "no kernel in this library is for this product or this GPU",
        "no CUDA driver: libcuda.so.1 is not there, too old, or finds no device",
        "no CUDA context is current: cudaFree(0) makes one",
        "the CUDA driver failed: tsm2_last_error names the function and the error",
        "no memory of the host, or of the GPU for a workspace",
        "the workspace is too small: tsm2_workspace_size tells what a product needs",
        "a kernel in this library does not match its digest: export the library again",
    };
    const int is_known = (int)status >= 0 && (size_t)status < sizeof texts / sizeof *texts;
    return is_known ? texts[status] : "no status of this library";
}

EXPORTED int tsm2_interface(void) { return TSM2_INTERFACE; }

EXPORTED const char *tsm2_about(void) { return pack_about; }

tsm2_status fail(tsm2_handle handle, tsm2_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(handle->error, sizeof handle->error, format, arguments);
    va_end(arguments);
    return status;
}

tsm2_status answered(tsm2_handle handle, const char *name, cu_result result)
{
    const char *error = NULL;
    if (result == 0)
        return TSM2_SUCCESS;
    if (handle->driver.error_name(result, &error) != 0 || error == NULL)
        error = "unknown error";
    return fail(handle, TSM2_DRIVER_ERROR, "%s failed: %s", name, error);
}

/* The GPU of the current context: its name, and the architecture that its kernels are compiled for. */
static tsm2_status read_device(tsm2_handle handle)
{
    const struct driver *driver = &handle->driver;
    const int bytes = (int)sizeof handle->device;
    int device = 0, major = 0, minor = 0;
    TRY(answered(handle, "cuCtxGetDevice", driver->current_device(&device)));
    TRY(answered(handle, "cuDeviceGetName", driver->device_name(handle->device, bytes, device)));
    TRY(answered(handle, "cuDeviceGetAttribute",
                 driver->device_attribute(&major, CU_COMPUTE_CAPABILITY_MAJOR, device)));
    TRY(answered(handle, "cuDeviceGetAttribute",
                 driver->device_attribute(&minor, CU_COMPUTE_CAPABILITY_MINOR, device)));
    const char *of_warpgroups = major == 9 && minor == 0 ? "a" : ""; /* instructions that Hopper alone has */
    snprintf(handle->architecture, sizeof handle->architecture, "sm_%d%d%s", major, minor, of_warpgroups);
    return TSM2_SUCCESS;
}

/* Which binaries are for this GPU. */
static void find_cubins(tsm2_handle handle)
{
    for (int i = 0; i < pack_winner_count; ++i)
        for (int width = 0; width < INDEX_WIDTHS; ++width)
            handle->cubins[i][width] = -1;
    for (int at = 0; at < pack_cubin_count; ++at) {
        const struct cubin *cubin = &pack_cubins[at];
        if (strcmp(cubin->architecture, handle->architecture) != 0)
            continue;
        for (int i = 0; i < pack_winner_count; ++i)
            if (pack_winners[i].kernel == cubin->kernel)
                handle->cubins[i][cubin->width] = at;
    }
}

static struct kernels *new_kernels(void)
{
    struct kernels *made = calloc(1, sizeof *made);
    if (made == NULL)
        return NULL;
    made->holders = 1;
    made->modules = calloc((size_t)pack_cubin_count, sizeof *made->modules);
    made->functions = calloc((size_t)pack_cubin_count, sizeof *made->functions);
    if (made->modules != NULL && made->functions != NULL && pthread_mutex_init(&made->lock, NULL) == 0)
        return made;
    free(made->modules);
    free(made->functions);
    free(made);
    return NULL;
}

/* Those of the other handle, which is of this context, or new ones; NULL: no memory. */
static struct kernels *held_kernels(tsm2_handle other)
{
    if (other == NULL)
        return new_kernels();
    pthread_mutex_lock(&other->kernels->lock);
    ++other->kernels->holders;
    pthread_mutex_unlock(&other->kernels->lock);
    return other->kernels;
}

/* Unloads the kernels where no other handle has them, in their context, if that is current: else it is gone. */
static cu_result drop_kernels(tsm2_handle handle, int is_current)
{
    struct kernels *kernels = handle->kernels;
    cu_result result = 0;
    pthread_mutex_lock(&kernels->lock);
    const int holders = --kernels->holders;
    pthread_mutex_unlock(&kernels->lock);
    if (holders > 0)
        return 0;
    for (int i = 0; is_current && i < pack_cubin_count && result == 0; ++i)
        if (kernels->modules[i] != NULL)
            result = handle->driver.unload_module(kernels->modules[i]);
    pthread_mutex_destroy(&kernels->lock);
    free(kernels->modules);
    free(kernels->functions);
    free(kernels);
    return result;
}

static void free_handle(tsm2_handle handle)
{
    driver_close(&handle->driver);
    free(handle->cubins);
    free(handle->functions);
    free(handle);
}

/* The status, after what it is of was kept as the reason for which there is no handle. */
static tsm2_status none_made(tsm2_status status, const char *why)
{
    snprintf(why_none, sizeof why_none, "%s", why);
    return status;
}

/* A handle for the current context, which has the kernels of the other one, if there is one. */
static tsm2_status create(tsm2_handle other, tsm2_handle *handle)
{
    *handle = NULL;
    tsm2_handle made = calloc(1, sizeof *made);
    if (made == NULL)
        return none_made(TSM2_OUT_OF_MEMORY, tsm2_status_text(TSM2_OUT_OF_MEMORY));
    made->cubins = calloc((size_t)pack_winner_count, sizeof *made->cubins);
    made->functions = calloc((size_t)pack_cubin_count, sizeof *made->functions);
    tsm2_status status = TSM2_SUCCESS;
    if (made->cubins == NULL || made->functions == NULL)
        status = TSM2_OUT_OF_MEMORY;
    else if (!driver_open(&made->driver))
        status = TSM2_NO_DRIVER;
    else if (made->driver.current_context(&made->context) != 0 || made->context == NULL)
        status = TSM2_NO_CONTEXT;
    else if (other != NULL && other->context != made->context)
        status = fail(made, TSM2_INVALID_VALUE, "argument 1, other: it is of another context than the current one");
    else if ((status = read_device(made)) == TSM2_SUCCESS && (made->kernels = held_kernels(other)) == NULL)
        status = TSM2_OUT_OF_MEMORY;
    if (status != TSM2_SUCCESS) {
        none_made(status, made->error[0] == '\0' ? tsm2_status_text(status) : made->error);
        free_handle(made);
        return status;
    }
    find_cubins(made);
    *handle = made;
    why_none[0] = '\0';
    return TSM2_SUCCESS;
}

EXPORTED tsm2_status tsm2_create(tsm2_handle *handle)
{
    if (handle == NULL)
        return none_made(TSM2_INVALID_VALUE, "argument 1, handle: it is NULL");
    return create(NULL, handle);
}

EXPORTED tsm2_status tsm2_create_beside(tsm2_handle other, tsm2_handle *handle)
{
    if (other == NULL || handle == NULL)
        return none_made(TSM2_INVALID_VALUE,
                         other == NULL ? "argument 1, other: it is NULL" : "argument 2, handle: it is NULL");
    return create(other, handle);
}

static cu_result free_device_memory(tsm2_handle handle)
{
    const struct driver *driver = &handle->driver;
    cu_result result = driver->await_context();
    if (handle->own.partials_bytes != 0 && result == 0)
        result = driver->release(handle->own.partials);
    if (handle->own.partials_bytes != 0 && result == 0)
        result = driver->release(handle->own.counters);
    return result;
}

EXPORTED tsm2_status tsm2_destroy(tsm2_handle handle)
{
    if (handle == NULL)
        return TSM2_SUCCESS;
    cu_result result = handle->driver.push_context(handle->context);
    if (result == 0) {
        result = free_device_memory(handle);
        const cu_result dropped = drop_kernels(handle, result == 0);
        result = result == 0 ? dropped : result;
        cu_context popped;
        handle->driver.pop_context(&popped);
    } else {
        drop_kernels(handle, 0);
    }
    free_handle(handle);
    return result == 0 ? TSM2_SUCCESS : TSM2_DRIVER_ERROR;
}

EXPORTED const char *tsm2_last_error(tsm2_handle handle)
{
    if (handle != NULL)
        return handle->error;
    return why_none[0] == '\0' ? "the handle is NULL" : why_none;
}

EXPORTED tsm2_status tsm2_set_stream(tsm2_handle handle, tsm2_stream stream)
{
    if (handle == NULL)
        return TSM2_INVALID_VALUE;
    handle->error[0] = '\0';
    handle->stream = stream;
    return TSM2_SUCCESS;
}

EXPORTED tsm2_status tsm2_get_stream(tsm2_handle handle, tsm2_stream *stream)
{
    if (handle == NULL)
        return TSM2_INVALID_VALUE;
    handle->error[0] = '\0';
    if (stream == NULL)
        return fail(handle, TSM2_INVALID_VALUE, "argument 2, stream: it is NULL");
    *stream = handle->stream;
    return TSM2_SUCCESS;
}

tsm2_status enter(tsm2_handle handle, int *has_entered)
{
    cu_context current = NULL;
    *has_entered = 0;
    TRY(answered(handle, "cuCtxGetCurrent", handle->driver.current_context(&current)));
    if (current == handle->context)
        return TSM2_SUCCESS;
    TRY(answered(handle, "cuCtxPushCurrent", handle->driver.push_context(handle->context)));
    *has_entered = 1;
    return TSM2_SUCCESS;
}

tsm2_status leave(tsm2_handle handle, int has_entered, tsm2_status status)
{
    cu_context popped;
    if (has_entered)
        handle->driver.pop_context(&popped);
    return status;
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

static int is_of(const struct winner *winner, const char *device) { return strcmp(winner->device, device) == 0; }

/* Whether a winner of the device is for this one's type and op. */
static int has_alike(const struct winner *winner, const char *device)
{
    for (int i = 0; i < pack_winner_count; ++i)
        if (is_of(&pack_winners[i], device) && pack_winners[i].type == winner->type &&
            strcmp(pack_winners[i].op, winner->op) == 0)
            return 1;
    return 0;
}

/* The device's own kernels; for types and ops that were not tuned there other devices', as far as they load. */
static tsm2_status load_all(tsm2_handle handle)
{
    cu_function function;
    for (int i = 0; i < pack_winner_count; ++i)
        for (int width = 0; width < INDEX_WIDTHS; ++width) {
            const struct winner *winner = &pack_winners[i];
            if (is_of(winner, handle->device))
                TRY(load_kernel(handle, winner, width, &function));
            else if (!has_alike(winner, handle->device))
                (void)load_kernel(handle, winner, width, &function);
        }
    handle->error[0] = '\0';
    return TSM2_SUCCESS;
}

EXPORTED tsm2_status tsm2_load(tsm2_handle handle)
{
    if (handle == NULL)
        return TSM2_INVALID_VALUE;
    handle->error[0] = '\0';
    int has_entered;
    TRY(enter(handle, &has_entered));
    return leave(handle, has_entered, load_all(handle));
}
