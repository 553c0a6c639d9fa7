/* Batches whose matrices are given by arrays of pointers. */

#include "handle.h"

static tsm2_status is_on_host(tsm2_handle handle, const void *address, int *is_host)
{
    int has_entered, type = 0;
    TRY(enter(handle, &has_entered));
    const cu_result result = handle->driver.pointer_attribute(&type, CU_MEMORY_TYPE, (uintptr_t)address);
    /* The driver does not know memory of the host that it has not allocated. */
    *is_host = result == CU_INVALID_VALUE || type == CU_MEMORY_OF_HOST;
    return leave(handle, has_entered, *is_host ? TSM2_SUCCESS : answered(handle, "cuPointerGetAttribute", result));
}

/* Set `first` to the first matrix, and `stride` to the elements from each matrix to the next. The array is argument
   `number` of the call. */
static tsm2_status read_array(tsm2_handle handle, const struct call *call, int number, const char *name,
                              const void *const array[], const void **first, int64_t *stride)
{
    const int64_t count = call->batch_count, element = core_element_bytes((int)call->type);
    int is_host = 0;
    if (array == NULL)
        return fail(handle, TSM2_INVALID_VALUE, "argument %d, %s: it is NULL", number, name);
    TRY(is_on_host(handle, array, &is_host));
    if (!is_host)
        return fail(handle, TSM2_NOT_SUPPORTED,
                    "argument %d, %s: its pointers are in device memory: only cuBLAS reads them there", number, name);
    const uintptr_t bytes = count > 1 ? (uintptr_t)array[1] - (uintptr_t)array[0] : 0;
    for (int64_t i = 2; i < count; ++i)
        if ((uintptr_t)array[i] - (uintptr_t)array[i - 1] != bytes)
            return fail(handle, TSM2_NOT_SUPPORTED,
                        "argument %d, %s: its matrices are not equally far apart: only cuBLAS computes that", number, name);
    if (bytes > INT64_MAX)
        return fail(handle, TSM2_NOT_SUPPORTED,
                    "argument %d, %s: each matrix lies before the last one: only cuBLAS computes that", number, name);
    if ((int64_t)bytes % element != 0)
        return fail(handle, TSM2_INVALID_VALUE, "argument %d, %s: its addresses are not multiples of %d bytes", number,
                    name, (int)element);
    *first = array[0];
    *stride = (int64_t)bytes / element;
    return TSM2_SUCCESS;
}

tsm2_status read_pointers(tsm2_handle handle, struct call *call, const void *const A[], const void *const B[],
                          void *const C[])
{
    const void *c = NULL;
    if (call->k > 0) {
        TRY(read_array(handle, call, 8, "A", A, &call->A, &call->stride_a));
        TRY(read_array(handle, call, 10, "B", B, &call->B, &call->stride_b));
    }
    TRY(read_array(handle, call, 13, "C", (const void *const *)C, &c, &call->stride_c));
    call->C = (void *)(uintptr_t)c;
    return TSM2_SUCCESS;
}
