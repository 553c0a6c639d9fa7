/* Try the core with hostile packs and products: mutations of a sound pack.

       core_fuzz PACK COUNT SEED

   Every pack that opens is asked for choices, whose numbers must be in the ranges that core.h promises. Compiled with
   -DTSM2_LIBFUZZER the mutations are libFuzzer's instead. */

#include "core.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REQUIRE(condition)                                                                                           \
    do {                                                                                                             \
        if (!(condition)) {                                                                                          \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                          \
            abort();                                                                                                 \
        }                                                                                                            \
    } while (0)

static void check_choice(const struct core_pack *pack, const struct core_product *product, int device)
{
    const struct core_choice choice = core_choose(pack, product, device);
    char text[96];
    core_explain(pack, &choice, "a GPU", text, sizeof text);
    REQUIRE(strlen(text) < sizeof text);
    if (choice.reason == CORE_NO_KERNEL)
        return;
    REQUIRE(choice.kernel >= 0 && choice.kernel < (int)pack->header->kernel_count);
    const struct core_kernel *kernel = &pack->kernels[choice.kernel];
    REQUIRE(choice.rows_per_block >= 1 && choice.splits >= 1);
    REQUIRE(!isnan(choice.us) && !isnan(choice.vendor_us) && choice.us >= 0 && choice.distance >= 0);
    REQUIRE(choice.index_bits == 32 || choice.index_bits == 64);
    if (choice.is_too_large)
        return;
    REQUIRE(choice.grid[0] >= 1 && choice.grid[0] <= INT_MAX && choice.grid[1] >= 1 && choice.grid[1] <= 65535);
    REQUIRE(!kernel->has_workspace == (choice.partials_bytes == 0));
    REQUIRE(kernel->is_persistent ||
            (double)choice.grid[0] * choice.rows_per_block *
                    (kernel->columns_per_block ? kernel->columns_per_block : (double)choice.extents[1]) >=
                (double)choice.extents[0] * (double)choice.extents[1]);
}

/* The first bytes of an input are a product and a device, the others a pack. */
enum { PRODUCT_BYTES = (int)sizeof(struct core_product) + 8 };

static void try_input(const unsigned char *data, size_t size)
{
    struct core_product product;
    struct core_pack pack;
    int32_t device;
    if (size < PRODUCT_BYTES)
        return;
    memcpy(&product, data, sizeof product);
    memcpy(&device, data + sizeof product, sizeof device);
    const size_t bytes = size - PRODUCT_BYTES;
    void *copy = malloc(bytes == 0 ? 1 : bytes); /* aligned, and with its end watched */
    memcpy(copy, data + PRODUCT_BYTES, bytes);
    const size_t needed = core_memory_bytes(copy, bytes);
    void *memory = needed == 0 || needed > (1u << 26) ? NULL : malloc(needed);
    if (memory != NULL && core_open(copy, bytes, memory, &pack) == NULL) {
        const int count = (int)pack.header->device_count;
        check_choice(&pack, &product, CORE_OTHER_GPU);
        check_choice(&pack, &product, CORE_HOST);
        check_choice(&pack, &product, count > 0 ? (int)((uint32_t)device % (uint32_t)count) : device);
        REQUIRE(core_device_index(&pack, "a GPU") >= CORE_OTHER_GPU);
    }
    free(memory);
    free(copy);
}

#ifdef TSM2_LIBFUZZER
int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);
int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    try_input(data, size);
    return 0;
}
#else
static uint64_t state;

static uint64_t random_bits(void)
{
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}

static int64_t random_extent(void)
{
    static const int64_t extents[] = {1, 2, 3, 7, 8, 16, 64, 257, 4096, 20480, 1000000, INT64_MAX / 16, INT64_MAX, 0, -1};
    const uint64_t which = random_bits() % 16;
    return which < 15 ? extents[which] : (int64_t)(random_bits() >> random_bits() % 64);
}

static void set_product(struct core_product *product)
{
    memset(product, 0, sizeof *product);
    product->m = random_extent(), product->n = random_extent(), product->k = random_extent();
    product->batch_count = random_bits() % 50 != 0;
    product->type = (int32_t)(random_bits() % 12) - 1;
    product->makes_c = (int32_t)(random_bits() % 2);
    product->is_gram = random_bits() % 4 == 0;
    for (int x = 0; x < CORE_MATRICES; ++x)
        for (int order = 0; order < CORE_ORDERS; ++order)
            product->ld[x][order] = random_bits() % 3 ? random_extent() : 0;
    for (int x = 0; x < 2; ++x)
        product->conjugates[x] = random_bits() % 8 == 0;
}

/* Replace a number of the pack by one at a bound of its type, or change some of its bits. */
static void mutate(unsigned char *pack, size_t size)
{
    static const double numbers[] = {0, 1, -1, 1e-300, 1e300, 1e12, 1e-9, HUGE_VAL, 0.5, 3};
    static const int64_t integers[] = {0, 1, -1, 2, 65535, 65536, INT_MAX, INT_MIN, INT64_MAX, INT64_MIN};
    const size_t at = random_bits() % (size / 4) * 4;
    const uint64_t how = random_bits() % 4, which = random_bits() % 10;
    const int32_t narrow = (int32_t)integers[which];
    if (how == 0 && at + 8 <= size)
        memcpy(pack + at / 8 * 8, &numbers[which], 8);
    else if (how == 1 && at + 8 <= size)
        memcpy(pack + at / 8 * 8, &integers[which], 8);
    else if (how == 2 && at + 4 <= size)
        memcpy(pack + at, &narrow, 4);
    else
        pack[random_bits() % size] ^= (unsigned char)(1u << random_bits() % 8);
}

int main(int count, char **arguments)
{
    FILE *file = count == 4 ? fopen(arguments[1], "rb") : NULL;
    static unsigned char sound[1 << 20];
    const size_t bytes = file == NULL ? 0 : fread(sound, 1, sizeof sound, file);
    if (bytes < 8)
        return 2;
    unsigned char *input = malloc(PRODUCT_BYTES + bytes);
    state = (uint64_t)strtoull(arguments[3], NULL, 10) * 2 + 1;
    for (long long i = 0, most = atoll(arguments[2]); i < most; ++i) {
        struct core_product product;
        const int32_t device = (int32_t)random_bits();
        set_product(&product);
        memcpy(input, &product, sizeof product);
        memcpy(input + sizeof product, &device, sizeof device);
        memcpy(input + PRODUCT_BYTES, sound, bytes);
        for (uint64_t mutations = random_bits() % 4; mutations > 0; --mutations)
            mutate(input + PRODUCT_BYTES, bytes);
        try_input(input, PRODUCT_BYTES + (random_bits() % 100 ? bytes : random_bits() % bytes));
    }
    free(input);
    fclose(file);
    return 0;
}
#endif
