/* Create and destroy handles, and set their stream. */

#include "handle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>


static _Thread_local char why_none[ERROR_BYTES]; /* why this thread's last creation of a handle failed; or "" */

EXPORTED int tsm2_interface(void) { return TSM2_INTERFACE; }

EXPORTED const char *tsm2_about(void) { return pack_about; }

/* Read the name of the current context's GPU, and its architecture. */
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

/* Find the binaries for this GPU. */
static void find_cubins(tsm2_handle handle)
{
    const int count = (int)handle->pack->header->kernel_count;
    for (int i = 0; i < count; ++i)
        for (int width = 0; width < INDEX_WIDTHS; ++width)
            handle->cubins[i][width] = -1;
    for (int at = 0; at < pack_cubin_count; ++at) {
        const struct cubin *cubin = &pack_cubins[at];
        if (strcmp(cubin->architecture, handle->architecture) != 0)
            continue;
        for (int i = 0; i < count; ++i)
            if ((int)handle->pack->kernels[i].code == cubin->code)
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

/* The kernels of the other handle, which is of this context, or new ones; NULL: no memory. */
static struct kernels *held_kernels(tsm2_handle other)
{
    if (other == NULL)
        return new_kernels();
    pthread_mutex_lock(&other->kernels->lock);
    ++other->kernels->holders;
    pthread_mutex_unlock(&other->kernels->lock);
    return other->kernels;
}

/* Unload the kernels unless another handle has them. If their context is not current, it is destroyed. */
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

/* Return the status, after keeping why no handle was created. */
static tsm2_status none_made(tsm2_status status, const char *why)
{
    snprintf(why_none, sizeof why_none, "%s", why);
    return status;
}

/* Create a handle for the current context, with the kernels of `other` unless that is NULL. */
static tsm2_status create(tsm2_handle other, tsm2_handle *handle)
{
    *handle = NULL;
    tsm2_handle made = calloc(1, sizeof *made);
    if (made == NULL)
        return none_made(TSM2_OUT_OF_MEMORY, tsm2_status_text(TSM2_OUT_OF_MEMORY));
    const char *fault;
    made->pack = library_pack(&fault);
    if (made->pack == NULL) {
        free_handle(made);
        return none_made(TSM2_OUT_OF_MEMORY, fault);
    }
    made->cubins = calloc(made->pack->header->kernel_count, sizeof *made->cubins);
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
    made->device_index = core_device_index(made->pack, made->device);
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
