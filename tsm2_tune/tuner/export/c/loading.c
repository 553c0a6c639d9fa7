/* Kernels on their way into the handle's context. */

#include <string.h>

#include "handle.h"
#include "sha256.h"

enum { OPTIN_SMEM_BYTES = 47 * 1024 }; /* more dynamic shared memory than this must be asked for: static counts too */

static tsm2_status load_cubin(tsm2_handle handle, const struct winner *winner, int index)
{
    const struct cubin *cubin = &pack_cubins[index];
    const unsigned char *image = pack_bytes + cubin->offset;
    unsigned char digest[sizeof cubin->sha256];
    sha256(image, cubin->bytes, digest);
    if (memcmp(digest, cubin->sha256, sizeof digest) != 0)
        return fail(handle, TSM2_WRONG_DIGEST, "the binary of %s does not match its digest: export this library again",
                    winner->config);
    cu_module module = NULL;
    cu_function function = NULL;
    TRY(answered(handle, "cuModuleLoadData", handle->driver.load_module(&module, image)));
    const cu_result result = handle->driver.module_function(&function, module, winner->entry);
    if (result != 0) {
        handle->driver.unload_module(module);
        return answered(handle, "cuModuleGetFunction", result);
    }
    handle->modules[index] = module;
    handle->functions[index] = function;
    return TSM2_SUCCESS;
}

tsm2_status load_kernel(tsm2_handle handle, const struct winner *winner, int width, cu_function *function)
{
    const int index = handle->cubins[winner - pack_winners][width];
    if (index < 0)
        return fail(handle, TSM2_NOT_SUPPORTED, "%s of %s: no binary of it for %s is in this library: tune on such a GPU",
                    winner->config, winner->device, handle->architecture);
    if (handle->modules[index] == NULL) {
        TRY(load_cubin(handle, winner, index));
        if (winner->launch.smem_bytes > OPTIN_SMEM_BYTES) {
            const cu_result result = handle->driver.set_function_attribute(
                handle->functions[index], CU_MAX_DYNAMIC_SHARED_SIZE_BYTES, winner->launch.smem_bytes);
            if (result != 0) {
                handle->driver.unload_module(handle->modules[index]);
                handle->modules[index] = NULL;
                return answered(handle, "cuFuncSetAttribute", result);
            }
        }
    }
    *function = handle->functions[index];
    return TSM2_SUCCESS;
}
