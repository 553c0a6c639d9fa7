/* The intercepted cublasLtMatmul: D = alpha op(A) op(B) + beta C, with operations and layouts in descriptors. */

#include "lt.h"

EXPORTED int cublasLtMatmul(void *handle, const void *operation, const void *alpha, const void *A, const void *layout_a,
                            const void *B, const void *layout_b, const void *beta, const void *C, const void *layout_c,
                            void *D, const void *layout_d, const void *algorithm, void *workspace, size_t workspace_bytes,
                            cu_stream stream)
{
#define REST                                                                                                         \
    (handle, operation, alpha, A, layout_a, B, layout_b, beta, C, layout_c, D, layout_d, algorithm, workspace,       \
     workspace_bytes, stream)
    struct caller *caller = caller_at(__builtin_return_address(0));
    if (caller == NULL)
        return CUBLAS_NOT_INITIALIZED;
    if (caller->is_cublas)
        return caller->matmul REST;
    const struct descriptors descriptors = {operation, {layout_a, layout_b, layout_c, layout_d}};
    const struct described of_descriptors = known_or_described(caller, &descriptors);
    struct asked asked = of_descriptors.asked;
    asked.alpha = alpha, asked.beta = beta, asked.C = D;
    asked.A = of_descriptors.is_swapped ? B : A, asked.B = of_descriptors.is_swapped ? A : B;
    if (asked.unfit == NOT_LEFT && beta != NULL && (C != D || of_descriptors.has_other_c) && !is_zero(&asked, beta))
        asked.unfit = MORE;
    asked = checked(asked);
    if (handle == NULL)
        asked.unfit = ZERO; /* cuBLASLt will report it */
    struct visit visit;
    if (begin_visit_on(&visit, stream, &asked))
        return end_visit(&visit, CUBLAS_SUCCESS);
    return end_visit(&visit, caller->matmul REST);
#undef REST
}
