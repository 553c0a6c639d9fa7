/* Predict a kernel's time for a product.

   The time from rates has no measured times: it follows from the device's rates and the kernel's fitted rates
   (core_rates). It is a sum of three parts: the start of a launch (START_US), the partial sums of its splits
   (sums_us), and its body (in terms_us). The body is the root of the sum of squares of three times that overlap in part:
   memory traffic, arithmetic, and the serial part between tiles. The first two grow if multiprocessors are idle. In a
   batch the body takes at least BATCH_STEP_US for each step along k of a slot.

   The predicted time is the time from rates times a factor: the ratio of the measured time to the time from rates,
   averaged over the kernel's measured shapes. Two corrections follow. The predicted time is never less than
   LEAST_MEMORY_SHARE of the time to move each operand and C once, nor than the time of the arithmetic at the device's
   rate. It is LONG_K times as long if k exceeds what the kernel adds up in one pass, although k did not at its own
   shape. docs/prediction.md explains each term, with an example. */

#include "model.h"

#include <math.h>
#include <string.h>

/* fmin and fmax for numbers that are not NaN: compilers inline these without -ffast-math. */
static double smaller(double a, double b) { return a < b ? a : b; }
static double larger(double a, double b) { return a > b ? a : b; }

/* Return the extent; 0 means unbounded in a pack. */
static double extent_or_unbounded(int32_t extent) { return extent > 0 ? (double)extent : UNBOUNDED; }

static const struct core_device *device_of(const struct core_pack *pack, int index)
{
    return &pack->devices[pack->kernels[index].device];
}

int is_predicted(const struct core_pack *pack, int index)
{
    return device_of(pack, index)->read_gbytes_per_s > 0 && pack->kernels[index].resident > 0;
}

/* --- Tiles --- */

/* A kernel's tiles for a product. The tiles of a CORE_SHARED kernel are whole products. */
struct tiles {
    double m, n;    /* extents of a tile */
    double down, across, along_k; /* numbers of tiles of C in m and n, and of steps along k */
    double steps;   /* along k, of all tiles of a product; of a batch if the kernel is CORE_SHARED */
    double products; /* products with blocks of their own: the batch if the kernel is CORE_ONE_EACH, else 1 */
};

static struct tiles tiles_of(const struct core_kernel *kernel, const struct work *work)
{
    if (kernel->batched == CORE_SHARED) {
        const struct tiles whole_products = {work->m, work->n, work->batch, 1, 1, work->batch, 1};
        return whole_products;
    }
    struct tiles tiles;
    tiles.products = kernel->batched == CORE_ONE_EACH ? work->batch : 1.0;
    tiles.m = kernel->tile_m;
    tiles.n = extent_or_unbounded(kernel->tile_n);
    tiles.down = ceil(work->m / tiles.m);
    tiles.across = ceil(work->n / tiles.n);
    tiles.along_k = ceil(work->k / extent_or_unbounded(kernel->k_step));
    tiles.steps = tiles.down * tiles.across * tiles.along_k;
    return tiles;
}

/* Return the arithmetic of whole tiles, with n and k padded, divided by the product's. */
static double padded_arithmetic(const struct core_kernel *kernel, const struct tiles *tiles, const struct work *work)
{
    const double m = work->m, n = work->n, k = work->k;
    if (kernel->batched == CORE_SHARED)
        return 1;
    const double n_padding = larger(kernel->n_padding > 0 ? kernel->n_padding : kernel->tile_n, 1.0);
    const double padded = (ceil(n / n_padding) * n_padding) * (ceil(k / kernel->k_padding) * kernel->k_padding);
    const double computed = tiles->down * tiles->m * padded;
    return computed / (m * n * k);
}

/* Return log(padding). Padding is the operations of whole tiles, which a kernel executes, divided by the product's. */
static double log_padding(const struct core_kernel *kernel, const struct work *work)
{
    const struct tiles tiles = tiles_of(kernel, work);
    return log(padded_arithmetic(kernel, &tiles, work));
}

/* --- Work --- */

int64_t core_element_bytes(int type)
{
    static const int64_t bytes[CORE_TYPES] = {4, 8, 8, 16, 2, 2, 4, 4, 4, 8};
    return bytes[type];
}

int64_t core_sum_bytes(int type) { return type == CORE_BF16 || type == CORE_F16 ? 4 : core_element_bytes(type); }

/* Return whether the extent in bytes is a multiple of a vector. The remainder is computed before the multiplication by
   the element's bytes, which cannot overflow then. */
static int is_whole(int64_t extent, int type, int32_t vector_bytes)
{
    return extent % vector_bytes * core_element_bytes(type) % vector_bytes == 0;
}

/* Return whether matrix x has unaligned lines: several lines (columns if it is column-major) whose leading dimension is
   no multiple of a vector, or whose length is not one either, if the kernel has no code for the remainder of a line
   (`takes_remainders` is 0). The matrix's base address is not known. */
static int has_unaligned_lines(const struct core_kernel *kernel, const struct core_product *product, int x,
                               int32_t vector_bytes, int takes_remainders)
{
    const int64_t rows = x == CORE_B ? product->k : product->m, columns = x == CORE_A ? product->k : product->n;
    const int order = kernel->orders[x];
    const int64_t lines = order == CORE_ROW_MAJOR ? rows : columns, length = order == CORE_ROW_MAJOR ? columns : rows;
    const int is_contiguous = (x == CORE_C && product->makes_c) || product->ld[x][order] == 0;
    const int64_t ld = is_contiguous ? length : product->ld[x][order];
    const int is_line_taken = takes_remainders || is_whole(length, product->type, vector_bytes);
    return lines > 1 && !(is_line_taken && is_whole(ld, product->type, vector_bytes));
}

/* Return the elements from a line or matrix of an operand to the next in shared memory. */
static double pitch_of(const struct core_kernel *kernel, double elements)
{
    const double vector = (double)(VECTOR_BYTES / core_element_bytes(kernel->type));
    return elements + (kernel->is_padded && fmod(elements, 2 * vector) == 0 ? vector : 0);
}

static double padded_elements(const struct core_kernel *kernel, int x, int64_t rows, int64_t columns)
{
    const int is_row_major = kernel->orders[x] == CORE_ROW_MAJOR;
    const double line = (double)(is_row_major ? columns : rows), lines = (double)(is_row_major ? rows : columns);
    return pitch_of(kernel, lines * pitch_of(kernel, line));
}

/* Return the bytes of shared memory for the operands of one product. */
static double operand_bytes(const struct core_kernel *kernel, int64_t m, int64_t n, int64_t k)
{
    const double of_a = padded_elements(kernel, CORE_A, m, k);
    const double of_b = kernel->is_gram ? 0 : padded_elements(kernel, CORE_B, k, n);
    const int rounding_bytes = VECTOR_BYTES * (2 * kernel->stages + 1); /* of each matrix of a stage, and of the sums */
    return kernel->stages * (of_a + of_b) * (double)core_element_bytes(kernel->type) + rounding_bytes;
}

/* A kernel that writes C from registers has no sums in shared memory. The pack does not say so: sums count if there is
   room for those of the kernel's own shape. */
int fits_shared_memory(const struct core_kernel *kernel, int64_t m, int64_t n, int64_t k)
{
    const double sum_bytes = (double)core_sum_bytes(kernel->type), smem_bytes = kernel->smem_bytes;
    const double of_own = operand_bytes(kernel, kernel->m, kernel->n, kernel->k);
    const int has_sums = of_own + (double)kernel->m * (double)kernel->n * sum_bytes <= smem_bytes;
    const double sums = has_sums ? (double)m * (double)n * sum_bytes : 0;
    return kernel->batched != CORE_SHARED || operand_bytes(kernel, m, n, k) + sums <= smem_bytes;
}

/* Return the number of matrices of A or B in memory: one if all products share it. */
static double matrices_of(const struct core_product *product, int x)
{
    return product->strides[x] == 0 ? 1.0 : (double)product->batch_count;
}

/* `b_is_a`: B is A, so only A is read. */
static struct work work_of_lines(const struct core_pack *pack, int index, const struct core_product *product,
                                 int b_is_a, int lacks_vectors)
{
    const struct core_device *device = device_of(pack, index);
    const double m = (double)product->m, n = (double)product->n, k = (double)product->k;
    const double batch = (double)product->batch_count;
    struct work work;
    work.m = m, work.n = n, work.k = k, work.batch = batch;
    work.log_m = log(m), work.log_n = log(n), work.log_k = log(k), work.log_batch = log(batch);
    work.lacks_vectors = lacks_vectors;
    work.log_padding = 0;
    work.leaves_out_shape = product->leaves_out_shape;
    const double of_b = b_is_a ? 0 : k * n * matrices_of(product, CORE_B);
    const double read = m * k * matrices_of(product, CORE_A) + of_b, written = m * n * batch;
    const double us_of_read = 1e-3 / device->read_gbytes_per_s; /* of a byte */
    const double us_of_written = larger(2e-3 / device->copy_gbytes_per_s - us_of_read, us_of_read);
    work.element_bytes = (double)core_element_bytes(product->type);
    work.memory_us = work.element_bytes * (read * us_of_read + written * us_of_written);
    const int is_complex = product->type == CORE_C64 || product->type == CORE_C128;
    const double gflops = device->gflops[product->type], flops = (is_complex ? 8 : 2) * m * n * k * batch;
    work.arithmetic_us = gflops > 0 ? flops / gflops * 1e-3 : 0;
    const double share = pack->kernels[index].is_gram ? (n + 1) / (2 * n) : 1; /* of C that is computed */
    work.least_us = larger(LEAST_MEMORY_SHARE * work.memory_us, share * work.arithmetic_us);
    return work;
}

struct work work_of(const struct core_pack *pack, int index, const struct core_product *product)
{
    const struct core_kernel *kernel = &pack->kernels[index];
    const int second = kernel->c_vector_bytes > 0 ? CORE_C : CORE_B;
    const int32_t second_bytes = kernel->c_vector_bytes > 0 ? kernel->c_vector_bytes : kernel->vector_bytes;
    const int takes_remainders = kernel->k_of_vectors == 0;
    const int lacks_vectors = has_unaligned_lines(kernel, product, CORE_A, kernel->vector_bytes, takes_remainders) ||
                              has_unaligned_lines(kernel, product, second, second_bytes, takes_remainders) ||
                              (double)product->k > extent_or_unbounded(kernel->k_of_vectors);
    struct work work = work_of_lines(pack, index, product, kernel->is_gram, lacks_vectors);
    work.log_padding = log_padding(kernel, &work);
    return work;
}

struct work vendor_work_of(const struct core_pack *pack, int index, const struct core_product *product)
{
    const struct core_kernel *kernel = &pack->kernels[index];
    const int lacks_vectors = has_unaligned_lines(kernel, product, CORE_A, VECTOR_BYTES, 1) ||
                              has_unaligned_lines(kernel, product, CORE_B, VECTOR_BYTES, 1);
    return work_of_lines(pack, index, product, product->is_gram, lacks_vectors);
}

/* --- A launch, and its time from rates --- */

/* A kernel's launch for a product. */
struct launch {
    double rows;   /* of C, per block */
    double splits; /* of k; if the kernel is persistent, blocks of the grid */
    double blocks; /* those that have work */
};

static double blocks_across(const struct core_kernel *kernel, const struct work *work)
{
    return ceil(work->n / extent_or_unbounded(kernel->columns_per_block));
}

static struct launch launch_of(const struct core_kernel *kernel, const struct tiles *tiles, const struct work *work,
                               double rows, double splits)
{
    struct launch launch;
    launch.rows = rows;
    launch.splits = splits;
    if (kernel->is_persistent)
        launch.blocks = smaller(splits, tiles->steps) * tiles->products;
    else
        launch.blocks = ceil(work->m / rows) * blocks_across(kernel, work) * splits * tiles->products;
    return launch;
}

static double us_per_element(const struct core_pack *pack, int index)
{
    const double bytes = (double)core_element_bytes(pack->kernels[index].type);
    return bytes * 1e-3 / device_of(pack, index)->read_gbytes_per_s;
}

/* Return the time of partial sums, which a kernel with a workspace has even with one split: every block writes its
   sums, and the last block of a tile reads them. A sum counts as large as an element, although sums of 16-bit elements
   have 4 bytes: most measured times from which SUMS_RATE comes are of other types. */
static double sums_us(const struct core_pack *pack, int index, const struct tiles *tiles, const struct work *work,
                      const struct launch *launch)
{
    const struct core_kernel *kernel = &pack->kernels[index];
    if (!kernel->has_workspace || (kernel->is_persistent && work->k <= extent_or_unbounded(kernel->k_step)))
        return 0;
    const double rows = smaller(kernel->is_persistent ? tiles->m : launch->rows, work->m);
    const double sums = rows * smaller(tiles->n, work->n) * launch->blocks;
    return SUMS_US + 2 / SUMS_RATE * us_per_element(pack, index) * sums;
}

/* Return the elements that are moved again since two columns of tiles share sectors of a row-major C. A pipelined block
   computes one column of tiles after the other, so such a sector is written twice, and read for both. */
static double shared_sectors(const struct core_kernel *kernel, const struct tiles *tiles, const struct work *work)
{
    const double elements = SECTOR_BYTES / (double)core_element_bytes(kernel->type);
    const int shares = fmod(work->n, elements) != 0 || fmod(tiles->n, elements) != 0;
    const int is_apart = kernel->is_pipelined && tiles->across > 1 && kernel->orders[CORE_C] == CORE_ROW_MAJOR;
    return is_apart && shares ? 3 * elements * tiles->across * work->m : 0;
}

/* Return the number of elements of repeated traffic; a reread element counts as 1 / CACHED_RATE. A is read for every
   column of tiles, B for every row of tiles (of blocks if a block keeps it), and C is read and written again by every
   pass over k after the first. A CORE_SHARED kernel moves nothing again. */
static double moved_again(const struct core_kernel *kernel, const struct tiles *tiles, const struct work *work,
                          const struct launch *launch)
{
    const double m = work->m, n = work->n, k = work->k;
    if (kernel->batched == CORE_SHARED)
        return 0;
    const int keeps_b = !kernel->is_persistent && k <= extent_or_unbounded(kernel->k_of_resident_b) * launch->splits;
    const double b_reads = keeps_b ? ceil(m / launch->rows) : tiles->down;
    const double reread = (tiles->across - 1) * m * k + (b_reads - 1) * k * n;
    const double rewritten = 2 * floor((k - 1) / extent_or_unbounded(kernel->k_per_pass)) * m * n;
    return (reread / CACHED_RATE + rewritten + shared_sectors(kernel, tiles, work)) * tiles->products;
}

/* Return the work of the busiest multiprocessor divided by the mean. */
static double imbalance_of(const struct core_kernel *kernel, const struct tiles *tiles, const struct launch *launch,
                           double multiprocessors)
{
    const double steps = kernel->is_persistent ? tiles->steps * tiles->products : tiles->along_k;
    const double parts = kernel->is_persistent ? launch->blocks : launch->splits;
    const double longest_block = ceil(steps / parts) * parts / steps; /* divided by the mean */
    const double waves = ceil(launch->blocks / (multiprocessors * kernel->resident));
    const double blocks = waves > 1 ? waves * kernel->resident : ceil(launch->blocks / multiprocessors);
    return longest_block * blocks * multiprocessors / launch->blocks;
}

/* Return the slowdown of a multiprocessor. `block_ratio` is its number of blocks at the kernel's own shape divided by
   the number here. */
static double slowdown(const struct core_kernel *kernel, double block_ratio)
{
    const double ratio = larger(block_ratio, 1 / USEFUL_BLOCKS);
    const double latency =
        sqrt(1.0 + ENOUGH_BLOCKS * ratio * (ENOUGH_BLOCKS * ratio)) / sqrt(1.0 + ENOUGH_BLOCKS * ENOUGH_BLOCKS);
    return larger(ratio / (kernel->is_persistent ? 1.0 : SPARE_BLOCKS), latency);
}

/* Return resident blocks per multiprocessor, weighted by how full their tiles are: these load memory. Persistent
   blocks count fully, since they load the next tile meanwhile. */
static double loading_blocks(const struct core_kernel *kernel, const struct tiles *tiles, const struct work *work,
                             const struct launch *launch, double multiprocessors)
{
    const double filled = kernel->is_persistent ? 1.0 : work->m / (tiles->down * tiles->m);
    return smaller(launch->blocks / multiprocessors, kernel->resident) * filled;
}

/* Return the mean number of resident blocks of the multiprocessors that have any: these compute. */
static double busy_blocks(const struct core_kernel *kernel, const struct launch *launch, double multiprocessors)
{
    return smaller(larger(launch->blocks / multiprocessors, 1.0), kernel->resident);
}

/* Return the tiles of C, times passes over k, that the busiest resident block computes one after the other. A pipelined
   block counts one tile, and so does a block that shares a batch, since its threads compute many products at once. */
static double tiles_in_turn(const struct core_kernel *kernel, const struct tiles *tiles, const struct work *work,
                            const struct launch *launch, double multiprocessors)
{
    const double at_once = smaller(launch->blocks, multiprocessors * kernel->resident);
    const double splits = kernel->is_persistent ? 1.0 : launch->splits;
    const double tiles_per_block = tiles->down * tiles->across * splits * tiles->products / at_once;
    const int counts_one_tile = kernel->is_pipelined || kernel->batched == CORE_SHARED;
    const double passes = ceil(work->k / extent_or_unbounded(kernel->k_per_pass));
    return (counts_one_tile ? 1.0 : ceil(tiles_per_block)) * passes;
}

/* Return the blocks of a batch that one slot of a multiprocessor runs one after the other. */
static double blocks_in_turn(const struct core_kernel *kernel, const struct launch *launch, double multiprocessors)
{
    return kernel->batched == CORE_ONE_EACH ? larger(launch->blocks / (multiprocessors * kernel->resident), 1.0) : 1.0;
}

/* Return the steps along k that one slot of a multiprocessor runs one after the other, for products of a batch that have
   blocks of their own. Blocks of a single product have few steps: k is split among them. */
static double steps_in_turn(const struct core_kernel *kernel, const struct tiles *tiles, const struct launch *launch,
                            double multiprocessors)
{
    if (kernel->batched != CORE_ONE_EACH || kernel->is_persistent)
        return 0;
    return ceil(tiles->along_k / launch->splits) * blocks_in_turn(kernel, launch, multiprocessors);
}

/* Return the factor on memory time by which the code for a product's extents is slower than that for the kernel's own
   shape. Kernels of small products have code of their own for the latter. */
static double general_code(const struct core_kernel *kernel, const struct work *work)
{
    const int is_own = work->m == (double)kernel->m && work->n == (double)kernel->n && work->k == (double)kernel->k;
    return kernel->batched == CORE_SHARED && !is_own ? GENERAL_CODE : 1.0;
}

/* The terms of a predicted time that do not depend on core_rates. */
struct time_terms {
    double start_and_sums_us;
    double memory_us, arithmetic_us, serial_us; /* without the factors below; the first two as in struct work */
    double steps_us; /* the least time of the body */
    double moved_again, us_per_element; /* elements, and the time to move one */
    double padded_arithmetic;
    double memory_factor, arithmetic_factor;
    double lacks_vectors;
};

static struct time_terms terms_of(const struct core_pack *pack, int index, const struct tiles *tiles,
                                  const struct work *work, const struct launch *launch)
{
    const struct core_kernel *kernel = &pack->kernels[index];
    const struct core_derived *derived = &pack->derived[index];
    const double multiprocessors = device_of(pack, index)->multiprocessors;
    const double imbalance = imbalance_of(kernel, tiles, launch, multiprocessors);
    const double idle = launch->blocks > multiprocessors ? 1 + IDLE_LOSS * (imbalance - 1) : 1;
    const double loading = loading_blocks(kernel, tiles, work, launch, multiprocessors);
    const double busy = busy_blocks(kernel, launch, multiprocessors);
    struct time_terms terms;
    terms.start_and_sums_us = START_US + sums_us(pack, index, tiles, work, launch);
    terms.memory_us = work->memory_us, terms.arithmetic_us = work->arithmetic_us;
    const double next_tile_us = kernel->is_persistent ? NEXT_PERSISTENT_TILE_US : NEXT_TILE_US;
    terms.serial_us = next_tile_us * (tiles_in_turn(kernel, tiles, work, launch, multiprocessors) - 1) +
                      NEXT_BLOCK_US * (blocks_in_turn(kernel, launch, multiprocessors) - 1);
    terms.steps_us = BATCH_STEP_US * steps_in_turn(kernel, tiles, launch, multiprocessors);
    terms.moved_again = moved_again(kernel, tiles, work, launch);
    terms.us_per_element = us_per_element(pack, index);
    terms.padded_arithmetic = padded_arithmetic(kernel, tiles, work);
    terms.memory_factor = idle * slowdown(kernel, derived->loading_blocks / loading) * general_code(kernel, work);
    terms.arithmetic_factor = imbalance * slowdown(kernel, derived->busy_blocks / busy);
    terms.lacks_vectors = work->lacks_vectors;
    return terms;
}

/* Return the time from rates: those of the device, in the terms, and those fitted to the kernel's times. */
static double terms_us(const struct time_terms *terms, const struct core_rates *rates)
{
    const double moved_us = terms->memory_us + terms->us_per_element / rates->cached_rate * terms->moved_again;
    const double memory = moved_us * terms->memory_factor;
    const double arithmetic =
        terms->arithmetic_us / rates->arithmetic_rate * terms->padded_arithmetic * terms->arithmetic_factor;
    const double overlapped = sqrt(memory * memory + arithmetic * arithmetic + terms->serial_us * terms->serial_us);
    const double body = larger(overlapped, terms->steps_us);
    return terms->start_and_sums_us + (terms->lacks_vectors != 0 ? rates->without_vectors : 1.0) * body;
}

/* Return the time from rates of a launch. */
static double launch_rates_us(const struct core_pack *pack, int index, const struct tiles *tiles,
                              const struct work *work, const struct launch *launch)
{
    const struct time_terms terms = terms_of(pack, index, tiles, work, launch);
    return terms_us(&terms, &pack->kernels[index].rates);
}

/* --- Launches to try --- */

enum { OPTIONS = 10 };
/* Blocks per multiprocessor that are tried; for kernels of keep_resident, multiples of the fewest splits. */
static const double multiples[OPTIONS] = {1, 2, 3, 4, 5, 6, 8, 12, 16, 24};

/* Return the rows of a block: as at the kernel's own shape, or fewer, so that every multiprocessor has its resident
   blocks. The splits are not chosen yet: those of the kernel's own shape are assumed. */
static double rows_of_block(const struct core_kernel *kernel, const struct tiles *tiles, const struct work *work,
                            double multiprocessors)
{
    if (kernel->rows_per_block <= kernel->tile_m)
        return kernel->rows_per_block;
    const double blocks = tiles->down * blocks_across(kernel, work) * kernel->splits * tiles->products;
    const double filling = floor(blocks / (multiprocessors * kernel->resident));
    return larger(smaller(floor(kernel->rows_per_block / tiles->m), filling), 1) * tiles->m;
}

/* Return the splits that give each multiprocessor at most `blocks_each` blocks; at least 1. A persistent kernel gets
   no more blocks per multiprocessor than at its own shape. */
static double splits_for(const struct core_kernel *kernel, const struct tiles *tiles, const struct work *work,
                         double rows, double blocks_each, double multiprocessors)
{
    if (!kernel->has_workspace && kernel->batched != CORE_SHARED)
        return 1;
    if (kernel->is_persistent) {
        const double own_blocks = kernel->splits * (kernel->batched == CORE_ONE_EACH ? (double)kernel->batch : 1.0);
        const double most = smaller(blocks_each, larger(floor(own_blocks / multiprocessors), 1)) * multiprocessors;
        return smaller(larger(floor(most / tiles->products), 1), tiles->steps);
    }
    const double blocks = ceil(work->m / rows) * blocks_across(kernel, work) * tiles->products;
    return smaller(larger(floor(blocks_each * multiprocessors / blocks), 1), smaller(tiles->along_k, MOST_SPLITS));
}

/* Set the launch of a kernel whose blocks had several tiles and were all resident at its own shape: `multiple` times
   the fewest splits that keep B, and as many rows as make all blocks resident. */
static void keep_resident(const struct core_kernel *kernel, const struct core_derived *derived,
                          const struct tiles *tiles, const struct work *work, double multiple, double multiprocessors,
                          double *rows, double *splits)
{
    const double fewest = ceil(work->k / extent_or_unbounded(kernel->k_of_resident_b));
    *splits = kernel->has_workspace ? smaller(fewest * multiple, smaller(tiles->along_k, MOST_SPLITS)) : 1;
    const double tiles_per_block =
        ceil(tiles->down * blocks_across(kernel, work) * *splits * tiles->products /
             (multiprocessors * derived->resident_blocks));
    *rows = smaller(larger(tiles_per_block, 1), smaller(tiles->down, floor(MOST_ROWS / tiles->m))) * tiles->m;
}

/* Set different launches with their times from rates, in the order of `multiples`. Return their number. */
static int launches_to_try(const struct core_pack *pack, int index, const struct work *work,
                           struct timed_launch tried[OPTIONS])
{
    const struct core_kernel *kernel = &pack->kernels[index];
    const struct core_derived *derived = &pack->derived[index];
    const double multiprocessors = device_of(pack, index)->multiprocessors;
    const struct tiles tiles = tiles_of(kernel, work);
    const double fitting_rows = rows_of_block(kernel, &tiles, work, multiprocessors);
    double previous_rows = 0, previous_splits = 0;
    int count = 0;
    for (int i = 0; i < OPTIONS; ++i) {
        double rows = fitting_rows, splits = 1;
        if (derived->resident_blocks > 0)
            keep_resident(kernel, derived, &tiles, work, multiples[i], multiprocessors, &rows, &splits);
        else
            splits = splits_for(kernel, &tiles, work, fitting_rows, multiples[i], multiprocessors);
        if (rows == previous_rows && splits == previous_splits)
            continue;
        previous_rows = rows, previous_splits = splits;
        const struct launch launch = launch_of(kernel, &tiles, work, rows, splits);
        tried[count].rows = (int32_t)rows;
        tried[count].splits = (int32_t)splits;
        tried[count++].us = launch_rates_us(pack, index, &tiles, work, &launch);
    }
    return count;
}

/* Return the index of the least time; of equal times, the first. */
static int fastest_of(const struct timed_launch *tried, int count)
{
    int fastest = 0;
    for (int i = 1; i < count; ++i)
        if (tried[i].us < tried[fastest].us)
            fastest = i;
    return fastest;
}

/* --- Measured times --- */

static double distance_to_point(const struct core_point *point, const struct work *work)
{
    const double m = point->log_m - work->log_m, n = point->log_n - work->log_n, k = point->log_k - work->log_k;
    const double batch = point->log_batch - work->log_batch, padding = point->log_padding - work->log_padding;
    const double vectors = point->lacks_vectors - work->lacks_vectors;
    return log_distance(m, n, k, batch, padding * padding + NO_VECTORS_APART * vectors * vectors);
}

/* Return whether the point is not used, because it was measured at a shape that is left out. */
static int is_point_left_out(const struct core_point *point, const struct work *work)
{
    return work->leaves_out_shape && point->log_k == work->log_k && point->log_batch == work->log_batch &&
           ((point->log_m == work->log_m && point->log_n == work->log_n) ||
            (point->log_m == work->log_n && point->log_n == work->log_m));
}

/* Add a point. Its weight is the reciprocal cube of its distance + DISTANCE_OFFSET. A short time consists mostly of
   its start, which does not grow with the product: this part of the logarithm of its ratio is scaled by the quotient
   of both times from rates. */
void add_point(struct average *average, const struct core_point *point, const struct work *work, double rates_us)
{
    if (is_point_left_out(point, work))
        return;
    const double distance = distance_to_point(point, work), offset_distance = distance + DISTANCE_OFFSET;
    const double weight = 1 / (offset_distance * offset_distance * offset_distance);
    const double without_start = point->rates_us - START_US; /* body and partial sums */
    const double share = without_start / (without_start + SHORT_BODY_US);
    const double reduction = share + (1 - share) * smaller(point->rates_us / rates_us, 1);
    average->weights += weight;
    average->sum += weight * (point->log_ratio * reduction);
    average->nearest = smaller(average->nearest, distance);
}

uint32_t nearest_point(const struct core_pack *pack, int index, const struct work *work, double *distance)
{
    const struct core_point *points = &pack->points[pack->derived[index].first_point];
    uint32_t nearest = 0;
    *distance = distance_to_point(&points[0], work);
    for (uint32_t i = 1; i <= pack->kernels[index].time_count; ++i) {
        const double distance_to = distance_to_point(&points[i], work);
        if (!is_point_left_out(&points[i], work) && distance_to < *distance)
            nearest = i, *distance = distance_to;
    }
    return nearest;
}

/* Return the factor on a kernel's times from rates, and set the distance of its nearest point. `rates_us` is
   the least of them: the fastest launch's. */
static double correction(const struct core_pack *pack, int index, const struct work *work, double rates_us,
                         double *distance)
{
    const struct core_kernel *kernel = &pack->kernels[index];
    const double k_per_pass = extent_or_unbounded(kernel->k_per_pass);
    struct average average = {0, 0, HUGE_VAL};
    for (uint32_t i = 0; i <= kernel->time_count; ++i)
        add_point(&average, &pack->points[(uint32_t)pack->derived[index].first_point + i], work, rates_us);
    *distance = average.nearest;
    const double penalty = work->k > k_per_pass && (double)kernel->k <= k_per_pass ? LONG_K : 1.0;
    return penalty * larger(exp(average.sum / average.weights), work->least_us / rates_us);
}

int fastest_launches(const struct core_pack *pack, int index, const struct work *work, struct timed_launch *found,
                     int room, double *distance)
{
    struct timed_launch tried[OPTIONS];
    const int tried_count = launches_to_try(pack, index, work, tried);
    const int count = tried_count < room ? tried_count : room;
    for (int i = 0; i < count; ++i) {
        const int fastest = fastest_of(tried, tried_count);
        found[i] = tried[fastest];
        tried[fastest].us = HUGE_VAL;
    }
    const double factor = correction(pack, index, work, found[0].us, distance);
    for (int i = 0; i < count; ++i)
        found[i].us *= factor;
    return count;
}

double distance_penalty(const struct core_pack *pack, int index, double distance)
{
    return exp((device_of(pack, index)->is_host ? HOST_DISTANCE_PENALTY : DISTANCE_PENALTY) * distance);
}

/* --- cuBLAS --- */

static double whole_tiles(double extent, double tile) { return ceil(extent / tile) * tile; }

/* Products, batches, and batches of which m or n is 1, are modelled as three routines. */
double vendor_rates_us(const struct work *work)
{
    const int is_vector = smaller(work->m, work->n) == 1, is_batch = work->batch > 1;
    double arithmetic = work->arithmetic_us / VENDOR_RATE, memory = work->memory_us, serial = 0;
    if (!is_vector) {
        const double padded = whole_tiles(work->m, VENDOR_TILE_BYTES / work->element_bytes) *
                              whole_tiles(work->n, VENDOR_TILE_N) * whole_tiles(work->k, VENDOR_TILE_K);
        arithmetic *= padded / (work->m * work->n * work->k);
        serial = is_batch ? VENDOR_BATCH_STEP_US * work->k : 0;
    } else if (is_batch) {
        memory *= VENDOR_BATCH_VECTOR_MEMORY;
        serial = VENDOR_BATCH_VECTOR_STEP_US * work->k + VENDOR_BATCH_VECTOR_US * work->batch;
    }
    const double body = sqrt(memory * memory + arithmetic * arithmetic + serial * serial);
    const double unaligned = work->element_bytes == 2 ? VENDOR_UNALIGNED_16BIT_LINES : VENDOR_UNALIGNED_LINES;
    return START_US + (work->lacks_vectors != 0 ? unaligned : 1.0) * body;
}

struct work work_for_vendor_distance(struct work work)
{
    work.log_m = work.m == 1 ? log(VENDOR_VECTOR_EXTENT) : work.log_m;
    work.log_n = work.n == 1 ? log(VENDOR_VECTOR_EXTENT) : work.log_n;
    return work;
}

double vendor_us(const struct average *average, const struct work *work)
{
    return exp(average->sum / average->weights) * vendor_rates_us(work);
}

/* --- Derived facts --- */

/* Return the product at a measured shape, with contiguous matrices, which products do not share. */
static struct core_product product_at(const struct core_kernel *kernel, const struct core_time *time)
{
    struct core_product product;
    memset(&product, 0, sizeof product);
    product.m = time->m, product.n = time->n, product.k = time->k;
    product.batch_count = time->batch;
    product.strides[CORE_A] = product.strides[CORE_B] = product.strides[CORE_C] = 1; /* only whether it is 0 counts */
    product.type = kernel->type;
    product.is_gram = kernel->is_gram;
    return product;
}

/* Return whether the numbers are finite, and store the point. */
static int set_point(struct core_point *point, const struct work *work, double rates_us, double measured_us)
{
    const double log_ratio = log(measured_us / rates_us);
    point->log_m = work->log_m, point->log_n = work->log_n, point->log_k = work->log_k;
    point->log_batch = work->log_batch;
    point->lacks_vectors = work->lacks_vectors;
    point->log_padding = work->log_padding;
    point->rates_us = larger(rates_us, START_US);
    point->log_ratio = log_ratio;
    return log_ratio > -HUGE_VAL && log_ratio < HUGE_VAL && work->log_padding < HUGE_VAL;
}

/* Return the terms at a measured shape, with the measured launch. Set `work`. */
static struct time_terms terms_at(const struct core_pack *pack, int index, const struct core_time *time,
                                  struct work *work)
{
    const struct core_kernel *kernel = &pack->kernels[index];
    const struct core_product product = product_at(kernel, time);
    *work = work_of(pack, index, &product);
    const struct tiles tiles = tiles_of(kernel, work);
    const struct launch launch = launch_of(kernel, &tiles, work, time->rows_per_block, time->splits);
    return terms_of(pack, index, &tiles, work, &launch);
}

/* Return the time from rates at a measured shape, with the measured launch. Set `work`. */
static double rates_us_at(const struct core_pack *pack, int index, const struct core_time *time, struct work *work)
{
    const struct time_terms terms = terms_at(pack, index, time, work);
    return terms_us(&terms, &pack->kernels[index].rates);
}

/* Return the kernel's time at its own shape. */
static struct core_time own_time(const struct core_kernel *kernel)
{
    const struct core_time own = {kernel->m,  kernel->n,  kernel->k, kernel->batch,
                                  kernel->us, kernel->rows_per_block, kernel->splits};
    return own;
}

static int set_time(const struct core_pack *pack, int index, struct core_point *point, const struct core_time *time)
{
    struct work work;
    const double rates_us = rates_us_at(pack, index, time, &work);
    return set_point(point, &work, rates_us, time->us);
}

void core_rates_us(const struct core_pack *pack, int index, const struct core_time *times, int count, double *us)
{
    core_us_by_rates(pack, index, times, count, &pack->kernels[index].rates, 1, us);
}

void core_us_by_rates(const struct core_pack *pack, int index, const struct core_time *times, int count,
                      const struct core_rates *rates, int rates_count, double *us)
{
    struct work work;
    memset(us, 0, (size_t)count * (size_t)rates_count * sizeof *us);
    for (int i = 0; i < count && is_predicted(pack, index); ++i) {
        const struct time_terms terms = terms_at(pack, index, &times[i], &work);
        for (int j = 0; j < rates_count; ++j)
            us[(size_t)j * (size_t)count + (size_t)i] = terms_us(&terms, &rates[j]);
    }
}

void core_unmeasured_us(const struct core_device *devices, const struct core_kernel *kernels,
                        const struct core_balance_blocks *balance_blocks, int count, double *us)
{
    for (int i = 0; i < count; ++i) {
        const struct core_time own = own_time(&kernels[i]);
        struct core_derived derived;
        struct core_pack pack; /* of one kernel, with the members that rates_us_at reads */
        struct work work;
        memset(&derived, 0, sizeof derived);
        memset(&pack, 0, sizeof pack);
        derived.loading_blocks = smaller(balance_blocks[i].memory / ENOUGH_BLOCKS, kernels[i].resident);
        derived.busy_blocks = smaller(balance_blocks[i].arithmetic / ENOUGH_BLOCKS, kernels[i].resident);
        pack.devices = devices, pack.kernels = &kernels[i], pack.derived = &derived;
        us[i] = is_predicted(&pack, 0) ? rates_us_at(&pack, 0, &own, &work) : HUGE_VAL;
    }
}

static int set_vendor_time(const struct core_pack *pack, int index, struct core_point *point,
                           const struct core_time *time)
{
    const struct core_product product = product_at(&pack->kernels[index], time);
    const struct work work = vendor_work_of(pack, index, &product);
    const double rates_us = vendor_rates_us(&work);
    const struct work distant = work_for_vendor_distance(work);
    return set_point(point, &distant, rates_us, time->us);
}

/* Set the blocks of the kernel at its own shape. */
static void set_blocks(const struct core_pack *pack, int index, struct core_derived *derived)
{
    const struct core_kernel *kernel = &pack->kernels[index];
    const double multiprocessors = device_of(pack, index)->multiprocessors;
    const struct core_time own = own_time(kernel);
    const struct core_product product = product_at(kernel, &own);
    const struct work work = work_of(pack, index, &product);
    const struct tiles tiles = tiles_of(kernel, &work);
    const struct launch launch = launch_of(kernel, &tiles, &work, kernel->rows_per_block, kernel->splits);
    const double blocks_each = launch.blocks / multiprocessors;
    const int has_several_tiles = !kernel->is_persistent && kernel->rows_per_block > kernel->tile_m;
    derived->loading_blocks = loading_blocks(kernel, &tiles, &work, &launch, multiprocessors);
    derived->busy_blocks = busy_blocks(kernel, &launch, multiprocessors);
    derived->resident_blocks = has_several_tiles && blocks_each <= kernel->resident ? ceil(blocks_each) : 0;
}

const char *derive_kernel(const struct core_pack *pack, int index, int *next_point, int *next_vendor_point)
{
    const struct core_kernel *kernel = &pack->kernels[index];
    struct core_derived *derived = &pack->derived[index];
    int is_finite = 1;
    derived->log_m = log((double)kernel->m);
    derived->log_n = log((double)kernel->n);
    derived->log_k = log((double)kernel->k);
    derived->log_batch = log((double)kernel->batch);
    derived->first_point = *next_point;
    derived->first_vendor_point = *next_vendor_point;
    if (is_predicted(pack, index)) {
        const struct core_time own = own_time(kernel);
        set_blocks(pack, index, derived);
        is_finite &= set_time(pack, index, &pack->points[(*next_point)++], &own);
        for (uint32_t i = 0; i < kernel->time_count; ++i)
            is_finite &= set_time(pack, index, &pack->points[(*next_point)++], &pack->times[kernel->first_time + i]);
    }
    if (device_of(pack, index)->read_gbytes_per_s > 0) {
        const struct core_time own = {kernel->m, kernel->n, kernel->k, kernel->batch, kernel->vendor_us, 0, 0};
        if (kernel->vendor_us > 0)
            is_finite &= set_vendor_time(pack, index, &pack->vendor_points[(*next_vendor_point)++], &own);
        for (uint32_t i = 0; i < kernel->vendor_time_count; ++i)
            is_finite &= set_vendor_time(pack, index, &pack->vendor_points[(*next_vendor_point)++],
                                         &pack->vendor_times[kernel->first_vendor_time + i]);
    }
    derived->vendor_point_count = *next_vendor_point - derived->first_vendor_point;
    return is_finite ? NULL : "a time cannot be predicted: its rates, extents or microseconds are out of range";
}
