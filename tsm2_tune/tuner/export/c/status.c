/* Statuses: their sentences, a handle's last error, and the context in which its driver calls are made. */

#include <stdarg.h>
#include <stdio.h>

#include "handle.h"

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
