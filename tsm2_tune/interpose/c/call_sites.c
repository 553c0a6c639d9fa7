/* Find the cuBLASLt library for a call from its call site. A program may have loaded two cuBLASLt libraries; only the
   one that created a descriptor can read it, and the handle does not identify it. The call site also shows whether the
   call comes from cuBLAS itself. */

#include <stdlib.h>
#include <string.h>

#include "lt.h"

enum { CALLERS = 1024, MOST_TRIED = 8 }; /* size of the hash table, a power of two; most probes for a call site */
static struct caller *_Atomic callers[CALLERS];

/* Return the mask of significant bits: those that are equal in two equal descriptors that were created in memory filled
   with zeros and with ones. */
static struct meaning meaning_of(const uint64_t *zeros, const uint64_t *ones)
{
    struct meaning found = {.words = 0};
    for (int at = 0; at < MOST_WORDS; ++at) {
        found.mask[at] = ~(zeros[at] ^ ones[at]);
        if (found.mask[at] != 0)
            found.words = at + 1;
    }
    return found;
}

/* Find the bits of an operation descriptor's first word that encode its size: those that do not depend on its types.
   Return false if these bits do not distinguish a smaller descriptor from one of full size. */
static bool find_size(struct caller *caller)
{
    uint64_t whole[MOST_WORDS], other[MOST_WORDS];
    const int words = caller->of_operation.words;
    memset(whole, 0, sizeof whole);
    memset(other, 0, sizeof other);
    if (caller->make_operation(whole, sizeof whole, COMPUTE_32F, R_32F) != CUBLAS_SUCCESS ||
        caller->make_operation(other, sizeof other, COMPUTE_64F, R_64F) != CUBLAS_SUCCESS)
        return false;
    caller->size = whole[0];
    caller->size_mask = caller->of_operation.mask[0] & ~(whole[0] ^ other[0]);
    for (int fewer = 1; fewer < words; ++fewer) {
        memset(other, 0, sizeof other);
        if (caller->make_operation(other, (size_t)fewer * sizeof *other, COMPUTE_32F, R_32F) == CUBLAS_SUCCESS &&
            ((other[0] ^ caller->size) & caller->size_mask) == 0)
            return false;
    }
    for (int fewer = 1; fewer < caller->of_layout.words; ++fewer)
        if (caller->make_layout(other, (size_t)fewer * sizeof *other, R_32F, 3, 2, 4) == CUBLAS_SUCCESS)
            return false;
    return true;
}

static bool find_meanings(struct caller *caller)
{
    uint64_t zeros[MOST_WORDS], ones[MOST_WORDS];
    memset(zeros, 0, sizeof zeros);
    memset(ones, 255, sizeof ones);
    if (caller->make_operation(zeros, sizeof zeros, COMPUTE_32F, R_32F) != CUBLAS_SUCCESS ||
        caller->make_operation(ones, sizeof ones, COMPUTE_32F, R_32F) != CUBLAS_SUCCESS)
        return false;
    caller->of_operation = meaning_of(zeros, ones);
    memset(zeros, 0, sizeof zeros);
    memset(ones, 255, sizeof ones);
    if (caller->make_layout(zeros, sizeof zeros, R_32F, 3, 2, 4) != CUBLAS_SUCCESS ||
        caller->make_layout(ones, sizeof ones, R_32F, 3, 2, 4) != CUBLAS_SUCCESS)
        return false;
    caller->of_layout = meaning_of(zeros, ones);
    return true;
}

/* Create a caller for this address. Its `matmul` is NULL if no library is found. Return NULL if memory is short. */
static struct caller *new_caller(const void *address)
{
    struct caller *made = calloc(1, sizeof *made);
    if (made == NULL)
        return NULL;
    void *found = function_for_code(&lt_kind, address, "cublasLtMatmul");
    memcpy(&made->matmul, &found, sizeof found);
    made->address = address;
    made->closings = atomic_load(&closings);
    made->is_cublas = is_code_of(&cublas_kind, address);
    made->is_whole = found != NULL;
#define FIND(name, symbol, parameters)                                                                               \
    found = function_for_code(&lt_kind, address, symbol);                                                            \
    memcpy(&made->name, &found, sizeof found);                                                                       \
    made->is_whole = made->is_whole && found != NULL;
    DESCRIPTORS(FIND)
#undef FIND
    made->is_whole = made->is_whole && find_meanings(made);
    return made;
}

static void give_up(struct caller *made)
{
    if (made != NULL)
        free((void *)made->known);
    free(made);
}

/* Store the caller in the table at `place`, where *before was. If another thread stored a caller first, return false
   and set *before to that caller. */
static bool is_kept(struct caller *made, struct caller *_Atomic *place, struct caller **before)
{
    if (made->known == NULL && made->is_whole && find_size(made))
        made->known = calloc(KNOWN, sizeof *made->known);
    return atomic_compare_exchange_strong(place, before, made);
}

/* Return whether the calls of both callers must go to the same library. */
static bool is_same(const struct caller *one, const struct caller *other)
{
    return one->matmul == other->matmul && one->is_cublas == other->is_cublas && one->is_whole == other->is_whole &&
           one->make_operation == other->make_operation;
}

struct caller *caller_at(const void *address)
{
    static _Thread_local struct caller spare; /* result for a caller that has no place in the table */
    const uint64_t closed = atomic_load_explicit(&closings, memory_order_acquire);
    const uint64_t hash = (uint64_t)(uintptr_t)address * 0x9E3779B97F4A7C15u >> 32;
    struct caller *made = NULL, *before;
    for (int step = 0; step < MOST_TRIED; ++step) {
        struct caller *_Atomic *place = &callers[(hash + (uint64_t)step) % CALLERS];
        before = atomic_load_explicit(place, memory_order_acquire);
        if (before == NULL) {
            made = made == NULL ? new_caller(address) : made;
            if (made == NULL || made->matmul == NULL) /* the library may be loaded later */
                break;
            if (is_kept(made, place, &before))
                return made;
        }
        if (before->address != address)
            continue;
        if (atomic_load(&before->closings) == closed || made != NULL) { /* or another thread made it */
            give_up(made);
            return before;
        }
        made = new_caller(address);
        if (made == NULL || made->matmul == NULL)
            break;
        if (is_same(made, before))
            atomic_store(&before->closings, closed);
        else if (is_kept(made, place, &before)) /* the previous caller is not freed, because threads may be using it */
            return made;
        give_up(made);
        return before;
    }
    made = made == NULL ? new_caller(address) : made;
    if (made == NULL || made->matmul == NULL) {
        give_up(made);
        return NULL;
    }
    spare = *made;
    spare.known = NULL; /* no cache, since `spare` is overwritten at the next such call */
    give_up(made);
    return &spare;
}
