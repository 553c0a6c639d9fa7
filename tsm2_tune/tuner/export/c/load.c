/* Load kernels into the handle's context. */

#include <stdlib.h>
#include <string.h>

#include "handle.h"
#include "sha256.h"

enum { OPTIN_SMEM_BYTES = 47 * 1024 }; /* beyond this dynamic shared memory needs an opt-in; static memory counts, too */

static struct core_pack opened;
static const char *open_fault; /* why it is not open; or NULL */
static pthread_once_t is_opened = PTHREAD_ONCE_INIT;

/* Open the pack. Its memory is never freed: handles and threads share it. */
static void open_pack(void)
{
    void *memory = malloc(core_memory_bytes(pack_core_bytes, pack_core_size));
    open_fault = memory == NULL ? "no memory of the host for the library's pack"
                                : core_open(pack_core_bytes, pack_core_size, memory, &opened);
}

const struct core_pack *library_pack(const char **fault)
{
    pthread_once(&is_opened, open_pack);
    *fault = open_fault;
    return open_fault == NULL ? &opened : NULL;
}

static const char *text_of(tsm2_handle handle, uint32_t offset) { return core_text(handle->pack, offset); }

/* Load the cubin's kernel into the context, after checking its digest. */
static tsm2_status load_cubin(tsm2_handle handle, const struct core_kernel *kernel, int index)
{
    struct kernels *kernels = handle->kernels;
    const struct driver *driver = &handle->driver;
    const struct cubin *cubin = &pack_cubins[index];
    const unsigned char *image = pack_cubin_bytes + cubin->offset;
    unsigned char digest[sizeof cubin->sha256];
    sha256(image, cubin->bytes, digest);
    if (memcmp(digest, cubin->sha256, sizeof digest) != 0)
        return fail(handle, TSM2_WRONG_DIGEST, "the binary of %s does not match its digest: export this library again",
                    text_of(handle, kernel->configuration));
    cu_module module = NULL;
    cu_function function = NULL;
    TRY(answered(handle, "cuModuleLoadData", driver->load_module(&module, image)));
    const char *call = "cuModuleGetFunction";
    cu_result result = driver->module_function(&function, module, text_of(handle, kernel->entry));
    if (result == 0 && kernel->smem_bytes > OPTIN_SMEM_BYTES) {
        call = "cuFuncSetAttribute";
        result = driver->set_function_attribute(function, CU_MAX_DYNAMIC_SHARED_SIZE_BYTES, kernel->smem_bytes);
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

static const char *device_name(tsm2_handle handle, int kernel)
{
    return text_of(handle, handle->pack->devices[handle->pack->kernels[kernel].device].name);
}

tsm2_status find_kernel(tsm2_handle handle, int kernel, int width)
{
    if (handle->cubins[kernel][width] >= 0)
        return TSM2_SUCCESS;
    return fail(handle, TSM2_NOT_SUPPORTED, "%s of %s: no binary of it for %s is in this library: tune on such a GPU",
                text_of(handle, handle->pack->kernels[kernel].configuration), device_name(handle, kernel),
                handle->architecture);
}

tsm2_status load_kernel(tsm2_handle handle, int kernel, int width, cu_function *function)
{
    TRY(find_kernel(handle, kernel, width));
    const int index = handle->cubins[kernel][width];
    if (handle->functions[index] == NULL) {
        struct kernels *kernels = handle->kernels;
        tsm2_status status = TSM2_SUCCESS;
        pthread_mutex_lock(&kernels->lock);
        if (kernels->modules[index] == NULL)
            status = refuse_capture(handle);
        if (kernels->modules[index] == NULL && status == TSM2_SUCCESS) {
            int mode = CU_CAPTURE_RELAXED;
            handle->driver.exchange_capture_mode(&mode);
            status = load_cubin(handle, &handle->pack->kernels[kernel], index);
            handle->driver.exchange_capture_mode(&mode);
        }
        handle->functions[index] = kernels->functions[index];
        pthread_mutex_unlock(&kernels->lock);
        TRY(status);
    }
    *function = handle->functions[index];
    return TSM2_SUCCESS;
}

static int is_own(tsm2_handle handle, int kernel)
{
    return (int)handle->pack->kernels[kernel].device == handle->device_index;
}

/* Whether the device has a kernel of the same type and op. */
static int has_alike(tsm2_handle handle, int kernel)
{
    const struct core_kernel *kernels = handle->pack->kernels;
    for (int i = 0; i < (int)handle->pack->header->kernel_count; ++i)
        if (is_own(handle, i) && kernels[i].type == kernels[kernel].type &&
            strcmp(text_of(handle, kernels[i].op), text_of(handle, kernels[kernel].op)) == 0)
            return 1;
    return 0;
}

/* Load the device's own kernels, and other devices' for types and ops that it lacks, if they load. */
static tsm2_status load_all(tsm2_handle handle)
{
    cu_function function;
    for (int kernel = 0; kernel < (int)handle->pack->header->kernel_count; ++kernel)
        for (int width = 0; width < INDEX_WIDTHS; ++width) {
            if (is_own(handle, kernel))
                TRY(load_kernel(handle, kernel, width, &function));
            else if (!has_alike(handle, kernel))
                (void)load_kernel(handle, kernel, width, &function);
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
