/* Try the core with hostile packs and products.

       core_fuzz COUNT SEED INPUT...

   tries each input and COUNT mutations of it, and prints how many inputs have a sound pack. A sound pack is asked for
   choices, whose numbers must be in the ranges that core.h promises. With libFuzzer instead:

       clang -std=c99 -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -DTSM2_LIBFUZZER \
           -Itsm2_tune/core tests/core_fuzz.c tsm2_tune/core/[a-z]*.c -lm -o core_fuzz
       mkdir corpus; tar -xf tests/core_corpus.tar.xz -C corpus; ./core_fuzz -max_len=6144 corpus

   136 zero bytes and a sound pack are an input to begin with if the layout of packs changes. */

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

static int is_time(double us) { return us >= 0 && us < HUGE_VAL; }

static void check_batch(const struct core_product *product, const struct core_kernel *kernel,
                        const struct core_choice *choice)
{
    const double m = (double)choice->extents[0], n = (double)choice->extents[1];
    const double elements = (double)product->m * (double)product->n * (double)product->batch_count;
    REQUIRE(fabs(m * n * (double)choice->batch_count / elements - 1) < 1e-9);
    REQUIRE(choice->batch_count == (choice->merged ? 1 : product->batch_count) && choice->measured_batch >= 1);
    REQUIRE((choice->batch_count > 1) == (kernel->batched != CORE_SINGLE));
    REQUIRE(!choice->merged || product->strides[choice->merged == CORE_ROWS ? CORE_B : CORE_A] == 0);
    REQUIRE(choice->is_too_large || choice->grid[2] == (kernel->batched == CORE_ONE_EACH ? choice->batch_count : 1));
    REQUIRE(choice->grid[2] <= 65535);
    const uint64_t products = choice->grid[2], sum_bytes = (uint64_t)core_sum_bytes(kernel->type);
    REQUIRE(choice->partials_bytes == products * choice->partials_stride * sum_bytes);
    REQUIRE(choice->counters_bytes == products * choice->counters_stride * 4);
}

static void check_choice(const struct core_pack *pack, const struct core_product *product,
                         const struct core_choice *choice)
{
    char text[96];
    core_explain(pack, choice, "a GPU", text, sizeof text);
    REQUIRE(strlen(text) < sizeof text);
    if (choice->reason == CORE_NO_KERNEL)
        return;
    REQUIRE(choice->kernel >= 0 && choice->kernel < (int)pack->header->kernel_count);
    const struct core_kernel *kernel = &pack->kernels[choice->kernel];
    REQUIRE(kernel->device < pack->header->device_count && choice->rows_per_block >= 1 && choice->splits >= 1);
    REQUIRE(is_time(choice->us) && is_time(choice->vendor_us) && is_time(choice->distance));
    REQUIRE(is_time(choice->error_factor));
    REQUIRE(choice->measured[0] >= 1 && choice->measured[1] >= 1 && choice->measured[2] >= 1);
    REQUIRE(is_time(choice->measured_us) && choice->measured_us > 0);
    REQUIRE(choice->index_bits == 32 || choice->index_bits == 64);
    struct core_choice again = *choice;
    core_set_leading_dimensions(pack, product, &again);
    REQUIRE(memcmp(again.ld, choice->ld, sizeof again.ld) == 0 && again.index_bits == choice->index_bits);
    REQUIRE(memcmp(again.strides, choice->strides, sizeof again.strides) == 0);
    check_batch(product, kernel, choice);
    if (choice->is_too_large)
        return;
    REQUIRE(choice->grid[0] >= 1 && choice->grid[0] <= INT_MAX && choice->grid[1] >= 1 && choice->grid[1] <= 65535);
    REQUIRE(!kernel->has_workspace == (choice->partials_bytes == 0));
    REQUIRE(kernel->is_persistent ||
            (double)choice->grid[0] * choice->rows_per_block *
                    (kernel->columns_per_block ? kernel->columns_per_block : (double)choice->extents[1]) >=
                (double)choice->extents[0] * (double)choice->extents[1]);
}

static void check_contenders(const struct core_pack *pack, const struct core_product *product, int device)
{
    enum { ROOM = 4 };
    struct core_choice found[ROOM];
    const int room = 1 + (int)((uint64_t)product->m % ROOM);
    const int count = core_contenders(pack, product, device, found, room);
    REQUIRE(count >= 0 && count <= room);
    for (int i = 0; i < count; ++i) {
        struct core_choice *one = &found[i];
        const int64_t *of = one->extents, batch = one->batch_count;
        const struct core_time time = {of[0], of[1], of[2], batch, 0, one->rows_per_block, one->splits};
        const struct core_rates rates[] = {pack->kernels[one->kernel].rates, {2, 1, 0.5}};
        double us, us_by_rates[2];
        core_rates_us(pack, one->kernel, &time, 1, &us);
        core_us_by_rates(pack, one->kernel, &time, 1, rates, 2, us_by_rates);
        REQUIRE(is_time(us) && is_time(us_by_rates[1]) && us_by_rates[0] == us);
        REQUIRE(one->reason != CORE_NO_KERNEL && (i == 0 || !one->is_too_large));
        REQUIRE(i < 2 || found[i - 1].us <= one->us);
        check_choice(pack, product, one);
    }
}

/* An input is a product, a device, and from PACK_AT on a pack. A product begins with extents, leading
   dimensions, strides and the number of products. */
enum { EXTENTS = 3 + CORE_MATRICES * (CORE_ORDERS + 1) + 1, DEVICE_AT = 132, PACK_AT = 136 };
typedef char product_ends_before_device[sizeof(struct core_product) <= DEVICE_AT ? 1 : -1];

/* Return whether the input's pack is sound. */
static int try_input(const unsigned char *data, size_t size)
{
    struct core_product product;
    struct core_pack pack;
    int32_t device;
    if (size < PACK_AT)
        return 0;
    memcpy(&product, data, sizeof product);
    memcpy(&device, data + DEVICE_AT, sizeof device);
    const size_t bytes = size - PACK_AT;
    void *copy = malloc(bytes == 0 ? 1 : bytes); /* aligned, and with its end watched */
    REQUIRE(copy != NULL);
    memcpy(copy, data + PACK_AT, bytes);
    const size_t needed = core_memory_bytes(copy, bytes);
    void *memory = needed == 0 || needed > (1u << 26) ? NULL : malloc(needed);
    const int is_sound = memory != NULL && core_open(copy, bytes, memory, &pack) == NULL;
    if (is_sound) {
        const int count = (int)pack.header->device_count;
        const int devices[] = {CORE_OTHER_GPU, CORE_HOST,
                               count > 0 ? (int)((uint32_t)device % (uint32_t)count) : device};
        for (size_t i = 0; i < sizeof devices / sizeof *devices; ++i) {
            const struct core_choice choice = core_choose(&pack, &product, devices[i]);
            check_choice(&pack, &product, &choice);
        }
        product.makes_c = 0;
        check_contenders(&pack, &product, devices[2]);
        REQUIRE(count == 0 || core_device_index(&pack, core_text(&pack, pack.devices[0].name)) == 0);
    }
    free(memory);
    free(copy);
    return is_sound;
}

/* --- Mutations --- */

static uint64_t state;

static uint64_t random_bits(void)
{
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}

static int64_t random_extent(void)
{
    static const int64_t extents[] = {1, 2, 3, 8, 16, 64, 257, 4096, 20480, 1000000, INT64_MAX, 0, -1};
    const uint64_t which = random_bits() % 14;
    return which < 13 ? extents[which] : (int64_t)(random_bits() >> random_bits() % 64);
}

enum { DEVICES, KERNELS, TIMES, VENDOR_TIMES, TABLES, TEXT_BYTES = TABLES, COUNTS }; /* as in the header */

/* Replace a number of the pack by a bound of a type or a count of the header, or change a bit. */
static void change_number(unsigned char *pack, size_t size)
{
    static const double numbers[] = {0, 1, -1, 1e-300, 1e300, 1e12, 1e-9, HUGE_VAL, 0.5, 3};
    static const int64_t integers[] = {0, 1, -1, 2, 65535, 65536, INT_MAX, INT_MIN, INT64_MAX, INT64_MIN};
    const size_t at = random_bits() % (size / 4) * 4;
    const uint64_t how = random_bits() % 5, which = random_bits() % 10;
    const int32_t narrow = (int32_t)integers[which];
    if (how == 0 && at + 8 <= size)
        memcpy(pack + at / 8 * 8, &numbers[which], 8);
    else if (how == 1 && at + 8 <= size)
        memcpy(pack + at / 8 * 8, &integers[which], 8);
    else if (how == 2)
        memcpy(pack + at, &narrow, 4);
    else if (how == 3)
        memcpy(pack + at, pack + offsetof(struct core_header, device_count) + which % COUNTS * 4, 4);
    else
        pack[which == 0 ? size - 1 : random_bits() % size] ^= (unsigned char)(1u << random_bits() % 8);
}

/* Ask for a product that the kernel fits, of its shape. */
static void ask_for_kernel(struct core_product *product, const struct core_kernel *kernel)
{
    product->m = kernel->m, product->n = kernel->n, product->k = kernel->k;
    product->batch_count = kernel->batch, product->type = kernel->type, product->is_gram = kernel->is_gram;
    for (int x = 0; x < CORE_MATRICES; ++x)
        product->ld[x][kernel->orders[x] == CORE_ROW_MAJOR] = random_extent(), product->strides[x] = random_extent();
    for (int x = 0; x < 2; ++x)
        product->conjugates[x] = kernel->conjugates[x];
}

struct table {
    unsigned char *records;
    size_t bytes; /* of a record */
    uint32_t *count;
};

/* Find the tables of a pack. Return whether it has the size that its header says. */
static int find_tables(unsigned char *pack, size_t size, struct table tables[TABLES])
{
    static const size_t bytes[TABLES] = {sizeof(struct core_device), sizeof(struct core_kernel),
                                         sizeof(struct core_time), sizeof(struct core_time)};
    uint32_t *counts = (uint32_t *)(pack + offsetof(struct core_header, device_count));
    size_t at = sizeof(struct core_header);
    for (int i = 0; i < TABLES && at <= size; ++i) {
        tables[i].records = pack + at, tables[i].bytes = bytes[i], tables[i].count = &counts[i];
        at += counts[i] * bytes[i];
    }
    return at <= size && at + counts[TEXT_BYTES] == size;
}

/* Let the times of kernels follow each other again. */
static void number_times(const struct table tables[TABLES])
{
    struct core_kernel *kernels = (struct core_kernel *)tables[KERNELS].records;
    uint32_t times = *tables[TIMES].count, vendor_times = *tables[VENDOR_TIMES].count;
    for (uint32_t i = 0; i < *tables[KERNELS].count; ++i) {
        kernels[i].first_time = *tables[TIMES].count - times;
        kernels[i].first_vendor_time = *tables[VENDOR_TIMES].count - vendor_times;
        kernels[i].time_count = kernels[i].time_count < times ? kernels[i].time_count : times;
        kernels[i].vendor_time_count =
            kernels[i].vendor_time_count < vendor_times ? kernels[i].vendor_time_count : vendor_times;
        times -= kernels[i].time_count, vendor_times -= kernels[i].vendor_time_count;
    }
}

/* Copy, repeat or remove a record, or copy a number from another record of its table. Return the pack's new size. */
static size_t change_records(unsigned char *pack, size_t size, size_t most, const struct table tables[TABLES])
{
    const struct table *table = &tables[random_bits() % TABLES];
    if (*table->count == 0)
        return size;
    const size_t bytes = table->bytes, word = random_bits() % (bytes / 4) * 4, how = random_bits() % 4;
    unsigned char *one = table->records + random_bits() % *table->count * bytes;
    const unsigned char *other = table->records + random_bits() % *table->count * bytes;
    const size_t beyond = (size_t)(pack + size - one);
    if (how == 0)
        memmove(one, other, bytes);
    else if (how == 1)
        memmove(one + word / 8 * 8, other + word / 8 * 8, 8);
    else if (how == 2 && size + bytes <= most)
        memmove(one + bytes, one, beyond), ++*table->count, size += bytes;
    else if (how == 3)
        memmove(one, one + bytes, beyond - bytes), --*table->count, size -= bytes;
    return size;
}

#ifdef TSM2_LIBFUZZER
size_t LLVMFuzzerMutate(unsigned char *data, size_t size, size_t most);
#else
static size_t LLVMFuzzerMutate(unsigned char *data, size_t size, size_t most)
{
    data[random_bits() % size] ^= (unsigned char)(1u << random_bits() % 8);
    return size <= most ? size : most;
}
#endif

/* Change the input, and return its new size. Most mutations of a sound pack are sound. */
static size_t mutated(unsigned char *data, size_t size, size_t most)
{
    struct table tables[TABLES];
    if (size < PACK_AT + sizeof(struct core_header))
        return LLVMFuzzerMutate(data, size, most);
    unsigned char *pack = data + PACK_AT;
    const size_t bytes = size - PACK_AT, how = random_bits() % 8;
    const int is_whole = find_tables(pack, bytes, tables);
    const int64_t extent = random_extent();
    if (how == 0)
        memcpy(data + random_bits() % EXTENTS * sizeof extent, &extent, sizeof extent);
    else if (how == 1)
        LLVMFuzzerMutate(data + random_bits() % (PACK_AT / 4) * 4, 4, 4);
    else if (how <= 3 && is_whole && *tables[KERNELS].count > 0)
        ask_for_kernel((struct core_product *)data, (const struct core_kernel *)tables[KERNELS].records +
                                                        random_bits() % *tables[KERNELS].count);
    else if (how == 4)
        change_number(pack, bytes);
    else if (how == 5)
        LLVMFuzzerMutate(pack + random_bits() % (bytes / 4) * 4, 4, 4);
    else if (is_whole) {
        size = PACK_AT + change_records(pack, bytes, most - PACK_AT, tables);
        if (find_tables(pack, size - PACK_AT, tables))
            number_times(tables);
    }
    return size;
}

static void seed_random_bits(uint64_t seed) { state = (seed + 1) * 0x9E3779B97F4A7C15u | 1; }

#ifdef TSM2_LIBFUZZER
int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);
int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    try_input(data, size);
    return 0;
}

size_t LLVMFuzzerCustomMutator(unsigned char *data, size_t size, size_t most, unsigned seed);
size_t LLVMFuzzerCustomMutator(unsigned char *data, size_t size, size_t most, unsigned seed)
{
    seed_random_bits(seed);
    return mutated(data, size, most);
}

/* Join the product of one input and the pack of another. */
size_t LLVMFuzzerCustomCrossOver(const unsigned char *one, size_t one_size, const unsigned char *other,
                                 size_t other_size, unsigned char *joined, size_t most, unsigned seed);
size_t LLVMFuzzerCustomCrossOver(const unsigned char *one, size_t one_size, const unsigned char *other,
                                 size_t other_size, unsigned char *joined, size_t most, unsigned seed)
{
    (void)seed;
    if (one_size < PACK_AT || other_size < PACK_AT || other_size > most)
        return 0;
    memcpy(joined, one, PACK_AT);
    memcpy(joined + PACK_AT, other + PACK_AT, other_size - PACK_AT);
    return other_size;
}
#else
int main(int count, char **arguments)
{
    enum { MOST = 1 << 18 };
    static unsigned char input[MOST], changed[MOST];
    int sound = 0;
    if (count < 4)
        return 2;
    seed_random_bits((uint64_t)strtoull(arguments[2], NULL, 10));
    for (int at = 3; at < count; ++at) {
        FILE *file = fopen(arguments[at], "rb");
        REQUIRE(file != NULL);
        const size_t bytes = fread(input, 1, MOST, file);
        fclose(file);
        sound += try_input(input, bytes);
        for (long i = atol(arguments[1]); i > 0 && bytes > 0; --i) {
            size_t size = bytes;
            memcpy(changed, input, bytes);
            for (uint64_t mutations = random_bits() % 4; mutations > 0 && size > 0; --mutations)
                size = mutated(changed, size, MOST);
            try_input(changed, random_bits() % 100 ? size : random_bits() % (size + 1));
        }
    }
    printf("%d\n", sound);
    return 0;
}
#endif
