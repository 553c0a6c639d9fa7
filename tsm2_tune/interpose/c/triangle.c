/* Products that may write only a triangle of C: syrk and herk. A kernel computes all of C in scratch memory. cuBLAS's
   trttp packs the triangle, and tpttr unpacks it into the program's C. */

#include <string.h>

#include "standin.h"

/* The scratch memory contains the full matrix, then the packed triangle. */
enum { FULL_BYTES = MOST_OF_TRIANGLE * MOST_OF_TRIANGLE * 16, SCRATCH_BYTES = 2 * FULL_BYTES };

/* Return the address of the lane's scratch memory, which is allocated at its first use; 0 if that fails. If another
   stream with the same handle used it before, wait for all work in the context. The stream must not be captured. */
static cu_pointer scratch_of(struct lane *lane, cu_stream stream)
{
    unsigned long long id = 0; /* of the legacy stream, whose handle is never reused */
    bool is_free = (uintptr_t)stream <= LEGACY_STREAM || driver()->stream_id(stream, &id) == 0;
    const int mode = relax_captures();
    if (lane->scratch == 0) {
        if (driver()->allocate(&lane->scratch, SCRATCH_BYTES) != 0)
            lane->scratch = 0;
    } else if (is_free && id != lane->scratch_stream_id) {
        is_free = driver()->await_context() == 0;
    }
    restore_captures(mode);
    if (is_free)
        lane->scratch_stream_id = id;
    return is_free ? lane->scratch : 0;
}

/* Copy C to scratch memory, where it has no padding. Return whether that succeeded. */
static bool copy_c(const struct asked *asked, cu_pointer to, cu_stream stream)
{
    const size_t bytes = (size_t)element_bytes(asked->type), line = (size_t)asked->n * bytes;
    const struct copy_2d plan = {.source_kind = ON_DEVICE, .source_device = (uintptr_t)asked->C,
                                 .source_pitch = (size_t)asked->ldc * bytes, .target_kind = ON_DEVICE,
                                 .target_device = to, .target_pitch = line, .width_bytes = line,
                                 .height = (size_t)asked->n};
    return driver()->copy(&plan, stream) == 0;
}

/* Copy the triangle from scratch memory to C. Return whether that succeeded. */
static bool copy_triangle(const struct asked *asked, cu_pointer scratch)
{
    static const char *const names[2][4] = {{"cublasStrttp", "cublasDtrttp", "cublasCtrttp", "cublasZtrttp"},
                                            {"cublasStpttr", "cublasDtpttr", "cublasCtpttr", "cublasZtpttr"}};
    static _Atomic(void *) places[2][4];
    int (*pack)(cublas_handle, int uplo, int n, const void *full, int ld, void *packed);
    int (*unpack)(cublas_handle, int uplo, int n, const void *packed, void *full, int ld);
    const int type = asked->type, n = (int)asked->n, uplo = asked->part == LOWER_C ? FILL_LOWER : FILL_UPPER;
    void *const packing = cublas_function(names[0][type], asked->handle, &places[0][type]);
    void *const unpacking = cublas_function(names[1][type], asked->handle, &places[1][type]);
    void *const full = (void *)(uintptr_t)scratch, *const packed = (void *)(uintptr_t)(scratch + FULL_BYTES);
    memcpy(&pack, &packing, sizeof pack);
    memcpy(&unpack, &unpacking, sizeof unpack);
    return pack != NULL && unpack != NULL && pack(asked->handle, uplo, n, full, n, packed) == CUBLAS_SUCCESS &&
           unpack(asked->handle, uplo, n, packed, asked->C, (int)asked->ldc) == CUBLAS_SUCCESS;
}

/* Set the imaginary part of the diagonal to 0, as herk does: after rounding it may differ from 0. */
static bool clear_diagonal(const struct asked *asked, cu_pointer scratch, cu_stream stream)
{
    const size_t half = (size_t)element_bytes(asked->type) / 2, n = (size_t)asked->n;
    return driver()->set_words(scratch + half, (n + 1) * 2 * half, 0, half / sizeof(uint32_t), n, stream) == 0;
}

enum reason start_triangle(struct lane *lane, cu_stream stream, const struct asked *asked,
                           enum reason (*start)(struct lane *, cu_stream, const struct asked *))
{
    const cu_pointer scratch = scratch_of(lane, stream);
    struct asked whole = *asked;
    if (scratch == 0)
        return NO_MEMORY;
    whole.part = WHOLE_C;
    whole.C = (void *)(uintptr_t)scratch;
    whole.ldc = asked->n;
    if (!is_zero(asked, asked->beta) && !copy_c(asked, scratch, stream))
        return FAILED;
    const enum reason reason = start(lane, stream, &whole);
    if (reason != NOT_LEFT)
        return reason;
    if (asked->routine == HERK && !clear_diagonal(asked, scratch, stream))
        return FAILED;
    return copy_triangle(asked, scratch) ? NOT_LEFT : FAILED;
}
