/* Load kernels into the handle's context. */

#include <string.h>

#include "handle.h"
#include "sha256.h"

enum { OPTIN_SMEM_BYTES = 47 * 1024 }; /* beyond this dynamic shared memory needs an opt-in; static memory counts, too */

/* Load the cubin's kernel into the context, after checking its digest. */
static tsm2_status load_cubin(tsm2_handle handle, const struct winner *winner, int index)
{
    struct kernels *kernels = handle->kernels;
    const struct driver *driver = &handle->driver;
    const struct cubin *cubin = &pack_cubins[index];
    const unsigned char *image = pack_bytes + cubin->offset;
    unsigned char digest[sizeof cubin->sha256];
    sha256(image, cubin->bytes, digest);
    if (memcmp(digest, cubin->sha256, sizeof digest) != 0)
        return fail(handle, TSM2_WRONG_DIGEST, "the binary of %s does not match its digest: export this library again",
                    winner->config);
    cu_module module = NULL;
    cu_function function = NULL;
    TRY(answered(handle, "cuModuleLoadData", driver->load_module(&module, image)));
    const char *call = "cuModuleGetFunction";
    cu_result result = driver->module_function(&function, module, winner->entry);
    if (result == 0 && winner->launch.smem_bytes > OPTIN_SMEM_BYTES) {
        call = "cuFuncSetAttribute";
        result = driver->set_function_attribute(function, CU_MAX_DYNAMIC_SHARED_SIZE_BYTES, winner->launch.smem_bytes);
    }
    if (result != 0) {
        driver->unload_module(module);
        return answered(handle, call, result);
    }
    kernels->modules[index] = module;
    kernels->functions[index] = function;
    return TSM2_SUCCESS;
}

/* Refuse to load while the stream is captured, which that would invalidate. */
static tsm2_status refuse_capture(tsm2_handle handle)
{
    int is_capturing = 0;
    if ((uintptr_t)handle->stream > LEGACY_STREAM)
        TRY(answered(handle, "cuStreamIsCapturing",
                     handle->driver.stream_is_capturing(handle->stream, &is_capturing)));
    return is_capturing ? fail(handle, TSM2_NOT_SUPPORTED,
                               "this product's kernel is not loaded, which a CUDA graph needs: tsm2_load before it")
                        : TSM2_SUCCESS;
}

tsm2_status find_kernel(tsm2_handle handle, const struct winner *winner, int width)
{
    if (handle->cubins[winner - pack_winners][width] >= 0)
        return TSM2_SUCCESS;
    return fail(handle, TSM2_NOT_SUPPORTED, "%s of %s: no binary of it for %s is in this library: tune on such a GPU",
                winner->config, winner->device, handle->architecture);
}

tsm2_status load_kernel(tsm2_handle handle, const struct winner *winner, int width, cu_function *function)
{
    TRY(find_kernel(handle, winner, width));
    const int index = handle->cubins[winner - pack_winners][width];
    if (handle->functions[index] == NULL) {
        struct kernels *kernels = handle->kernels;
        tsm2_status status = TSM2_SUCCESS;
        pthread_mutex_lock(&kernels->lock);
        if (kernels->modules[index] == NULL)
            status = refuse_capture(handle);
        if (kernels->modules[index] == NULL && status == TSM2_SUCCESS) {
            int mode = CU_CAPTURE_RELAXED;
            handle->driver.exchange_capture_mode(&mode);
            status = load_cubin(handle, winner, index);
            handle->driver.exchange_capture_mode(&mode);
        }
        handle->functions[index] = kernels->functions[index];
        pthread_mutex_unlock(&kernels->lock);
        TRY(status);
    }
    *function = handle->functions[index];
    return TSM2_SUCCESS;
}

static int is_of(const struct winner *winner, const char *device) { return strcmp(winner->device, device) == 0; }

/* Whether the device has a winner of the same type and op. */
static int has_alike(const struct winner *winner, const char *device)
{
    for (int i = 0; i < pack_winner_count; ++i)
        if (is_of(&pack_winners[i], device) && pack_winners[i].type == winner->type &&
            strcmp(pack_winners[i].op, winner->op) == 0)
            return 1;
    return 0;
}

/* Load the device's own kernels, and other devices' for types and ops that it lacks, if they load. */
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
