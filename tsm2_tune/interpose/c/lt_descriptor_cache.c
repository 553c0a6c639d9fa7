/* A cache of decoded cuBLASLt descriptors. Reading twenty attributes takes longer than the rest of an intercepted call;
   comparing descriptors with cached ones is quick. Operation descriptors of an older header are smaller and not cached,
   because the bytes after them may not be readable. */

#include <stdlib.h>
#include <string.h>

#include "lt.h"

enum { MOST_PLACES = 8, HASHED_WORDS = 32 };

struct known {
    struct described described;
    uint64_t words[]; /* copies of the operation descriptor and the four layouts */
};

static uint64_t mixed(uint64_t hash, const uint64_t *words, const struct meaning *meaning, int at)
{
    return (hash ^ (words[at] & meaning->mask[at])) * 0x9E3779B97F4A7C15u;
}

static uint64_t hash_of(const struct caller *of, const struct descriptors *descriptors)
{
    const struct meaning *operation = &of->of_operation, *layout = &of->of_layout;
    uint64_t hash = 0, of_layouts[4] = {1, 2, 3, 4}; /* five independent dependency chains */
    for (int at = 0; at < operation->words && at < HASHED_WORDS; ++at)
        hash = mixed(hash, descriptors->operation, operation, at);
    for (int at = 0; at < layout->words && at < HASHED_WORDS; ++at)
        for (int which = 0; which < 4; ++which)
            of_layouts[which] = mixed(of_layouts[which], descriptors->layouts[which], layout, at);
    for (int which = 0; which < 4; ++which)
        hash = (hash ^ of_layouts[which]) * 0x9E3779B97F4A7C15u;
    return hash >> 32;
}

static bool is_of(const struct known *known, const struct caller *of, const struct descriptors *descriptors)
{
    const uint64_t *words = known->words + of->of_operation.words;
    for (int which = 0; which < 4; ++which, words += of->of_layout.words)
        if (!is_like(descriptors->layouts[which], words, &of->of_layout))
            return false;
    return is_like(descriptors->operation, known->words, &of->of_operation);
}

/* Create a cache entry. Return NULL if memory is short. */
static struct known *new_known(const struct caller *of, const struct descriptors *descriptors, const struct described *found)
{
    const size_t operation = (size_t)of->of_operation.words, layout = (size_t)of->of_layout.words;
    struct known *made = malloc(sizeof *made + (operation + 4 * layout) * sizeof(uint64_t));
    if (made == NULL)
        return NULL;
    made->described = *found;
    memcpy(made->words, descriptors->operation, operation * sizeof(uint64_t));
    for (size_t which = 0; which < 4; ++which)
        memcpy(made->words + operation + which * layout, descriptors->layouts[which], layout * sizeof(uint64_t));
    return made;
}

static bool has_whole_size(const struct caller *of, const void *operation)
{
    const uint64_t *words = operation;
    return ((words[0] ^ of->size) & of->size_mask) == 0;
}

/* Return whether the result may be cached. Products that no kernel can compute get at most a quarter of the places,
   since their descriptors may contain a pointer that differs in each call. */
static bool has_room(struct caller *of, const struct described *found)
{
    const bool is_fit = found->asked.type >= 0 && found->asked.unfit == NOT_LEFT;
    return is_fit || atomic_fetch_add(&of->unfit, 1) < KNOWN / 4;
}

struct described known_or_described(struct caller *of, const struct descriptors *descriptors)
{
    const void *const *layouts = descriptors->layouts;
    if (of->known == NULL || !of->is_whole || descriptors->operation == NULL || layouts[0] == NULL || layouts[1] == NULL ||
        layouts[2] == NULL || layouts[3] == NULL || !has_whole_size(of, descriptors->operation))
        return described(of, descriptors);
    const uint64_t hash = hash_of(of, descriptors);
    for (int step = 0; step < MOST_PLACES; ++step) {
        struct known *_Atomic *place = &of->known[(hash + (uint64_t)step) % KNOWN];
        struct known *known = atomic_load_explicit(place, memory_order_acquire);
        if (known == NULL) {
            const struct described found = described(of, descriptors);
            struct known *made = has_room(of, &found) ? new_known(of, descriptors, &found) : NULL;
            if (made != NULL && !atomic_compare_exchange_strong(place, &known, made))
                free(made); /* another thread was first */
            return found;
        }
        if (is_of(known, of, descriptors))
            return known->described;
    }
    return described(of, descriptors); /* no place is free, and entries are never replaced */
}
