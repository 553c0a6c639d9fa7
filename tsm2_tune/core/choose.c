/* Choose a kernel and its launch for a product. */

#include "model.h"

#include <limits.h>
#include <math.h>
#include <string.h>

enum { SUMS_ALIGNMENT = 4 }; /* elements: the partial sums of each product of a batch begin at a multiple */
enum { GROUP_SPLITS = 16 }; /* splits whose partial sums are added up first if there are more than flat_splits */
/* Elements: beyond it a kernel needs 64-bit indices. It is 2**31 - 2**22, since a loop counter may exceed an offset
   by the number of threads in the grid. */
#define LARGEST_32_BIT_OFFSET 2143289344
#define LARGEST_BYTES 0x1p62

/* --- Candidates --- */

/* The kernels of one device that can compute a product, and among which the predicted times decide. */
struct candidates {
    const struct core_pack *pack;
    const struct core_product *product;
    int device;  /* index */
    int c_order; /* -1: any */
};

static int is_own_shape(const struct core_kernel *kernel, const struct core_product *product)
{
    return kernel->m == product->m && kernel->n == product->n && kernel->k == product->k &&
           kernel->batch == product->batch_count;
}

/* Return whether the kernel is not used, because the product leaves out the kernel's own shape. */
static int is_left_out(const struct core_kernel *kernel, const struct core_product *product)
{
    return product->leaves_out_shape && kernel->k == product->k && kernel->batch == product->batch_count &&
           ((kernel->m == product->m && kernel->n == product->n) ||
            (kernel->m == product->n && kernel->n == product->m));
}

/* Return whether the kernel computes so many products of this shape. */
static int computes_batch(const struct core_kernel *kernel, const struct core_product *product)
{
    return (product->batch_count > 1) == (kernel->batched != CORE_SINGLE) &&
           (kernel->batched != CORE_ONE_EACH || product->batch_count <= MOST_ONE_EACH) &&
           fits_shared_memory(kernel, product->m, product->n, product->k);
}

/* Return whether the kernel can compute the product with C in this order; -1: in any order. */
static int can_compute(const struct core_pack *pack, int index, const struct core_product *product, int c_order)
{
    const struct core_kernel *kernel = &pack->kernels[index];
    return kernel->type == product->type && computes_batch(kernel, product) &&
           product->ld[CORE_A][kernel->orders[CORE_A]] != 0 && product->ld[CORE_B][kernel->orders[CORE_B]] != 0 &&
           kernel->conjugates[0] == product->conjugates[0] && kernel->conjugates[1] == product->conjugates[1] &&
           (product->is_gram || !kernel->is_gram) &&
           (product->makes_c || product->ld[CORE_C][kernel->orders[CORE_C]] != 0) &&
           (c_order < 0 || kernel->orders[CORE_C] == c_order || kernel->is_gram) && !is_left_out(kernel, product);
}

/* Advance `index` to the next candidate, from -1 to the first. Return false after the last. */
static int next_candidate(const struct candidates *candidates, int *index)
{
    const struct core_pack *pack = candidates->pack;
    while (++*index < (int)pack->header->kernel_count)
        if ((int)pack->kernels[*index].device == candidates->device &&
            can_compute(pack, *index, candidates->product, candidates->c_order))
            return 1;
    return 0;
}

static int has_candidate(const struct candidates *candidates)
{
    int index = -1;
    return next_candidate(candidates, &index);
}

/* Return the device whose kernels are candidates; -1 if no kernel can compute the product or the transposed product.
   It is the device itself, or else the device of the first kernel that can, a host for a host and a GPU for a GPU. */
static int device_of_candidates(const struct core_pack *pack, const struct core_product *product,
                                const struct core_product *transposed, int device)
{
    const int is_host = device == CORE_HOST || (device >= 0 && pack->devices[device].is_host);
    int first_other = -1;
    for (int index = 0; index < (int)pack->header->kernel_count; ++index) {
        const int found = (int)pack->kernels[index].device;
        const int may_be_first = first_other < 0 && pack->devices[found].is_host == is_host;
        if ((found == device || may_be_first) &&
            (can_compute(pack, index, product, -1) || can_compute(pack, index, transposed, -1))) {
            if (found == device)
                return device;
            first_other = found;
        }
    }
    return first_other;
}

/* Find the device's candidates. If C is allocated later, only kernels for the wanted order, if there are any. Return
   whether there are candidates. */
static int find_candidates(const struct core_pack *pack, const struct core_product *product, int device, int wanted,
                           struct candidates *found)
{
    found->pack = pack, found->product = product, found->device = device;
    found->c_order = product->makes_c && product->m > 1 && product->n > 1 ? wanted : -1;
    if (found->c_order >= 0 && !has_candidate(found))
        found->c_order = -1;
    return has_candidate(found);
}

/* --- The best candidate --- */

/* Return the distance of a kernel's own shape from the product. */
static double own_distance(const struct core_pack *pack, int index, const struct core_product *product)
{
    const struct core_derived *derived = &pack->derived[index];
    const double m = derived->log_m - log((double)product->m), n = derived->log_n - log((double)product->n);
    const double k = derived->log_k - log((double)product->k);
    return log_distance(m, n, k, derived->log_batch - log((double)product->batch_count), 0);
}

static double distance_between(const struct core_choice *measured, const struct core_product *product)
{
    const int64_t *shape = measured->measured;
    const double m = log((double)shape[0] / (double)product->m), n = log((double)shape[1] / (double)product->n);
    const double k = log((double)shape[2] / (double)product->k);
    return log_distance(m, n, k, log((double)measured->measured_batch / (double)product->batch_count), 0);
}

/* Return whether kernel a comes before b if they are equally near, or have equal predicted times. */
static int comes_before(const struct core_pack *pack, int a, int b)
{
    const struct core_kernel *x = &pack->kernels[a], *y = &pack->kernels[b];
    return x->us != y->us ? x->us < y->us : x->is_gram > y->is_gram;
}

static int are_predicted(const struct candidates *candidates)
{
    const struct core_pack *pack = candidates->pack;
    for (int index = -1; next_candidate(candidates, &index);)
        if (!is_predicted(pack, index))
            return 0;
    return 1;
}

/* Choose the candidate whose own shape is nearest, with the launch of that shape. */
static void choose_nearest(const struct candidates *candidates, struct core_choice *choice)
{
    const struct core_pack *pack = candidates->pack;
    double nearest_distance = HUGE_VAL;
    choice->kernel = -1;
    for (int index = -1; next_candidate(candidates, &index);) {
        const struct core_product *product = candidates->product;
        const int is_own = is_own_shape(&pack->kernels[index], product);
        const double distance = is_own ? 0 : own_distance(pack, index, product);
        if (choice->kernel < 0 || distance < nearest_distance ||
            (distance == nearest_distance && comes_before(pack, index, choice->kernel))) {
            choice->kernel = index;
            nearest_distance = distance;
        }
    }
    choice->rows_per_block = pack->kernels[choice->kernel].rows_per_block;
    choice->splits = pack->kernels[choice->kernel].splits;
}

/* Return the error factor of a predicted gain from the distances of the nearest shapes at which the kernel, and cuBLAS,
   were measured. */
static double error_factor(double distance, double vendor_distance)
{
    const double of_distance = DISTANCE_ERROR * fmax(distance, vendor_distance);
    return sqrt(1 + of_distance * of_distance);
}

/* Set the measured shape of the choice's kernel that is nearest to the product, its time, and its distance in the extents
   and the number of products. Set the error factor if a gain is predicted, that is if the choice has cuBLAS's time.
   `vendor_distance` is that from cuBLAS's nearest measured shape. */
static void set_measured(const struct core_pack *pack, const struct core_product *product, double vendor_distance,
                         struct core_choice *choice)
{
    const struct core_kernel *kernel = &pack->kernels[choice->kernel];
    const struct work work = work_of(pack, choice->kernel, product);
    double point_distance = 0; /* with the padding and the vectors */
    const uint32_t nearest =
        is_predicted(pack, choice->kernel) ? nearest_point(pack, choice->kernel, &work, &point_distance) : 0;
    const struct core_time *time = nearest > 0 ? &pack->times[kernel->first_time + nearest - 1] : NULL;
    choice->measured[0] = time != NULL ? time->m : kernel->m;
    choice->measured[1] = time != NULL ? time->n : kernel->n;
    choice->measured[2] = time != NULL ? time->k : kernel->k;
    choice->measured_batch = time != NULL ? time->batch : kernel->batch;
    choice->measured_us = time != NULL ? time->us : kernel->us;
    choice->distance = distance_between(choice, product);
    if (choice->reason == CORE_PREDICTED && choice->vendor_us > 0)
        choice->error_factor = error_factor(point_distance, vendor_distance);
}

/* Choose the candidate with the least predicted time, penalized by its distance from measured shapes. */
static void choose_fastest(const struct candidates *candidates, struct core_choice *choice)
{
    const struct core_pack *pack = candidates->pack;
    double best_us = HUGE_VAL;
    int best = -1;
    for (int index = -1; next_candidate(candidates, &index);) {
        int32_t rows, splits;
        double penalized_us;
        const double us = core_predict(pack, index, candidates->product, &rows, &splits, &penalized_us);
        if (best < 0 || penalized_us < best_us || (penalized_us == best_us && comes_before(pack, index, best))) {
            best_us = penalized_us;
            best = index;
            choice->us = us;
            choice->rows_per_block = rows;
            choice->splits = splits;
        }
    }
    choice->kernel = best;
}

double core_predict(const struct core_pack *pack, int index, const struct core_product *product,
                    int32_t *rows_per_block, int32_t *splits, double *penalized_us)
{
    *rows_per_block = pack->kernels[index].rows_per_block;
    *splits = pack->kernels[index].splits;
    *penalized_us = 0;
    if (!is_predicted(pack, index))
        return 0;
    const struct work work = work_of(pack, index, product);
    struct timed_launch fastest;
    double distance;
    fastest_launches(pack, index, &work, &fastest, 1, &distance);
    *rows_per_block = fastest.rows;
    *splits = fastest.splits;
    *penalized_us = fastest.us * distance_penalty(pack, index, distance);
    return fastest.us;
}

/* Return cuBLAS's predicted time from its times beside all candidates; 0 without any. `nearest` is the candidate
   whose shape is nearest: a matrix with several storage orders counts in this kernel's. Set the distance of the nearest
   shape at which cuBLAS was measured. */
static double predicted_vendor_us(const struct candidates *candidates, int nearest, double *distance)
{
    const struct core_pack *pack = candidates->pack;
    const struct work work = vendor_work_of(pack, nearest, candidates->product);
    const struct work distant = work_for_vendor_distance(work);
    const double rates_us = vendor_rates_us(&work);
    struct average average = {0, 0, HUGE_VAL};
    for (int index = -1; next_candidate(candidates, &index);)
        for (int i = 0; i < pack->derived[index].vendor_point_count; ++i)
            add_point(&average, &pack->vendor_points[pack->derived[index].first_vendor_point + i], &distant, rates_us);
    *distance = average.nearest;
    return average.weights > 0 ? vendor_us(&average, &work) : 0;
}

/* Return whether the kernel can use vectors for the product if, and only if, it could where its own time was measured:
   else that time does not hold, even for its own shape. */
static int uses_vectors_as_measured(const struct core_pack *pack, int index, const struct core_product *product)
{
    const struct core_point *own = &pack->points[pack->derived[index].first_point];
    return own->lacks_vectors == work_of(pack, index, product).lacks_vectors;
}

/* Choose a kernel of the device that computes the product as it is. `wanted` is the preferred order of a C that is
   allocated later. */
static struct core_choice choose_as_is(const struct core_pack *pack, const struct core_product *product, int device,
                                       int wanted)
{
    struct core_choice choice;
    struct candidates candidates;
    double vendor_distance = 0;
    memset(&choice, 0, sizeof choice);
    if (!find_candidates(pack, product, device, wanted, &candidates))
        return choice;
    choose_nearest(&candidates, &choice);
    const int nearest = choice.kernel, is_host = pack->devices[device].is_host;
    choice.reason = CORE_NEAREST;
    const int can_predict = are_predicted(&candidates);
    if (is_own_shape(&pack->kernels[nearest], product) &&
        (!can_predict || uses_vectors_as_measured(pack, nearest, product))) {
        choice.reason = CORE_TUNED;
        choice.us = is_host ? 0 : pack->kernels[nearest].us;
        choice.vendor_us = is_host ? 0 : pack->kernels[nearest].vendor_us;
    } else if (can_predict) {
        choose_fastest(&candidates, &choice);
        choice.reason = CORE_PREDICTED;
        choice.us = is_host ? 0 : choice.us;
        choice.vendor_us = is_host ? 0 : predicted_vendor_us(&candidates, nearest, &vendor_distance);
    }
    set_measured(pack, product, vendor_distance, &choice);
    return choice;
}

/* --- The transposed product --- */

/* Return whether the transposed product's choice is better than the product's own. The predicted times are compared
   without the penalty for distance, which decides only among kernels for the same product. On a host no times are
   returned, so the choice with the nearer shape is better. */
static int is_better(const struct core_choice *transposed, const struct core_choice *as_is, int is_host)
{
    if (is_host)
        return transposed->distance < as_is->distance;
    return transposed->us > 0 && transposed->us < as_is->us;
}

/* --- Launches --- */

static uint64_t quotient_up(uint64_t a, uint64_t b) { return a / b + (a % b != 0); }

/* Return whether offsets need 64 bits. `ld` are the kernel's. */
static int needs_64_bits(const struct core_kernel *kernel, const int64_t extents[3], const int64_t ld[CORE_MATRICES])
{
    const int64_t m = extents[0], n = extents[1], k = extents[2], longest = m > k ? m : k;
    const int64_t rows[CORE_MATRICES] = {m, k, m}, columns[CORE_MATRICES] = {k, n, n};
    /* A loop that strides over m or k may count up to twice as far: beyond it by the rows of the grid. */
    int is_needed = longest > LARGEST_32_BIT_OFFSET / 2;
    for (int x = 0; x < CORE_MATRICES; ++x) {
        const int64_t lines = kernel->orders[x] == CORE_ROW_MAJOR ? rows[x] : columns[x];
        is_needed |= (double)ld[x] * (double)lines > (double)LARGEST_32_BIT_OFFSET;
    }
    return is_needed;
}

/* Set the grid and the workspace for the extents of the choice. Return false, with parts of them set, if they are too
   large. */
static int set_launch(const struct core_kernel *kernel, struct core_choice *choice)
{
    const uint64_t m = (uint64_t)choice->extents[0], n = (uint64_t)choice->extents[1];
    const uint64_t rows = (uint64_t)choice->rows_per_block, splits = (uint64_t)choice->splits;
    const uint64_t columns = kernel->columns_per_block > 0 ? (uint64_t)kernel->columns_per_block : n;
    const uint64_t down = quotient_up(m, rows), across = quotient_up(n, columns);
    const int are_many = (double)down * (double)across > (double)INT_MAX;
    /* A persistent kernel has at most INT_MAX blocks, so more tiles do not change its workspace. */
    const uint64_t tiles = are_many ? (uint64_t)INT_MAX : down * across;
    if (!kernel->is_persistent && (are_many || splits > MOST_SPLITS))
        return 0;
    choice->grid[0] = (uint32_t)(kernel->is_persistent ? splits : tiles);
    choice->grid[1] = (uint32_t)(kernel->is_persistent ? 1 : splits);
    choice->grid[2] = kernel->batched == CORE_ONE_EACH ? (uint32_t)choice->batch_count : 1;
    if (!kernel->has_workspace)
        return 1;
    /* Beyond flat_splits, groups of splits are added up first. A persistent block has at most two incomplete tiles. */
    const uint64_t groups = splits > (uint64_t)kernel->flat_splits ? quotient_up(splits, GROUP_SPLITS) : 0;
    const uint64_t sums =
        kernel->is_persistent ? splits + (tiles < splits ? tiles : splits) : (splits + groups) * tiles;
    const uint64_t sum_bytes = (uint64_t)core_sum_bytes(kernel->type), products = choice->grid[2];
    if ((double)sums * (double)rows * (double)columns * (double)sum_bytes * (double)products > LARGEST_BYTES)
        return 0;
    const uint64_t alignment = products > 1 ? SUMS_ALIGNMENT : 1;
    choice->partials_stride = quotient_up(sums * rows * columns, alignment) * alignment;
    choice->counters_stride = kernel->is_persistent ? 2 * splits : tiles * (1 + groups);
    choice->partials_bytes = products * choice->partials_stride * sum_bytes;
    choice->counters_bytes = 4 * products * choice->counters_stride;
    return 1;
}

/* --- The choice --- */

double least_gain(const struct core_pack *pack, const struct core_choice *choice)
{
    return exp(CONFIDENCE * pack->kernels[choice->kernel].gain_error * choice->error_factor);
}

double core_largest_gain_error(const struct core_choice *choice)
{
    return log(choice->vendor_us / choice->us) / (CONFIDENCE * choice->error_factor);
}

/* Return whether cuBLAS should compute the product. At a tuned shape the measured times decide. Without predicted times
   (choice->us is 0) those at the kernel's own shape decide. Otherwise the predicted gain has to exceed its error. */
static int is_vendors(const struct core_pack *pack, const struct core_choice *choice)
{
    const struct core_kernel *kernel = &pack->kernels[choice->kernel];
    if (choice->us <= 0)
        return kernel->vendor_us > 0 && kernel->vendor_us < kernel->us;
    if (choice->reason == CORE_TUNED)
        return choice->vendor_us > 0 && choice->vendor_us < choice->us;
    return choice->vendor_us > 0 && choice->vendor_us < least_gain(pack, choice) * choice->us;
}

/* Set the leading dimensions and strides of the product as the kernel computes it, and the index width. */
static void set_ld(const struct core_kernel *kernel, const struct core_product *product, struct core_choice *choice)
{
    for (int x = 0; x < CORE_MATRICES; ++x) {
        choice->ld[x] = product->ld[x][kernel->orders[x]];
        choice->strides[x] = product->batch_count > 1 ? product->strides[x] : 0;
    }
    if (product->makes_c) {
        choice->ld[CORE_C] = kernel->orders[CORE_C] == CORE_ROW_MAJOR ? product->n : product->m;
        choice->strides[CORE_C] = product->batch_count > 1 ? (int64_t)((uint64_t)product->m * (uint64_t)product->n) : 0;
    }
    choice->index_bits = needs_64_bits(kernel, choice->extents, choice->ld) ? 64 : 32;
}

void core_set_leading_dimensions(const struct core_pack *pack, const struct core_product *product,
                                 struct core_choice *choice)
{
    const struct core_product computed = core_merged_product(product, (enum core_merged)choice->merged);
    const struct core_product transposed = core_transposed_product(&computed);
    set_ld(&pack->kernels[choice->kernel], choice->is_transposed ? &transposed : &computed, choice);
}

/* Complete the choice for the product as its kernel computes it. `device` is the one that computes. */
static struct core_choice completed(const struct core_pack *pack, const struct core_product *product, int device,
                                    struct core_choice choice)
{
    const struct core_kernel *kernel = &pack->kernels[choice.kernel];
    choice.is_of_other_device = !pack->devices[kernel->device].is_host && (int)kernel->device != device;
    choice.extents[0] = product->m, choice.extents[1] = product->n, choice.extents[2] = product->k;
    choice.batch_count = product->batch_count;
    set_ld(kernel, product, &choice);
    choice.is_vendors = is_vendors(pack, &choice);
    if (!set_launch(kernel, &choice)) {
        choice.is_too_large = 1;
        choice.grid[0] = choice.grid[1] = choice.grid[2] = 0;
        choice.partials_bytes = choice.counters_bytes = choice.partials_stride = choice.counters_stride = 0;
    }
    return choice;
}

/* Return whether kernels for the transposed product compete with this choice. Kernels are made for a tall C, so they
   do if C is wide, unless a kernel was tuned for the product as it is, or its time is unknown on a GPU. */
static int may_be_transposed(const struct core_product *product, const struct core_choice *as_is, int is_host)
{
    return product->m < product->n && as_is->reason != CORE_TUNED && (as_is->us > 0 || is_host);
}

/* Return the kernel for a product, or a batch as it is, without checks. */
static struct core_choice choose_apart(const struct core_pack *pack, const struct core_product *product, int device)
{
    const struct core_product transposed = core_transposed_product(product);
    const int found = device_of_candidates(pack, product, &transposed, device);
    struct core_choice none;
    memset(&none, 0, sizeof none);
    if (found < 0)
        return none;
    const int is_host = pack->devices[found].is_host;
    const struct core_choice as_is = choose_as_is(pack, product, found, CORE_COLUMN_MAJOR);
    if (as_is.reason != CORE_NO_KERNEL && !may_be_transposed(product, &as_is, is_host))
        return completed(pack, product, device, as_is);
    struct core_choice transposed_choice = choose_as_is(pack, &transposed, found, CORE_ROW_MAJOR);
    transposed_choice.is_transposed = 1;
    if (transposed_choice.reason != CORE_NO_KERNEL &&
        (as_is.reason == CORE_NO_KERNEL || is_better(&transposed_choice, &as_is, is_host)))
        return completed(pack, &transposed, device, transposed_choice);
    return completed(pack, product, device, as_is);
}

struct core_choice core_choose(const struct core_pack *pack, const struct core_product *product, int device)
{
    struct core_choice choice;
    memset(&choice, 0, sizeof choice);
    if (product->type < 0 || product->type >= CORE_TYPES || product->m < 1 || product->n < 1 || product->k < 1 ||
        product->batch_count < 1 || product->batch_count > INT_MAX || device < CORE_HOST ||
        device >= (int)pack->header->device_count)
        return choice;
    for (int merged = CORE_ROWS; merged <= CORE_COLUMNS && choice.reason == CORE_NO_KERNEL; ++merged) {
        const struct core_product one = core_merged_product(product, (enum core_merged)merged);
        if (one.batch_count == 1 && product->batch_count > 1) {
            choice = choose_apart(pack, &one, device);
            choice.merged = choice.reason == CORE_NO_KERNEL ? CORE_APART : merged;
        }
    }
    return choice.reason == CORE_NO_KERNEL ? choose_apart(pack, product, device) : choice;
}

/* --- Launches to time --- */

enum { LAUNCHES_OF_A_KERNEL = 2 };

/* Insert a choice by its time behind found[0], which stays first. If there is no room, the slowest is dropped. Return
   the number of choices. */
static int insert(struct core_choice *found, int count, int room, const struct core_choice *choice)
{
    if (count == room && (count == 1 || found[count - 1].us <= choice->us))
        return count;
    int at = count < room ? count++ : count - 1;
    for (; at > 1 && found[at - 1].us > choice->us; --at)
        found[at] = found[at - 1];
    found[at] = *choice;
    return count;
}

static int is_same_launch(const struct core_choice *a, const struct core_choice *b)
{
    return a->kernel == b->kernel && a->rows_per_block == b->rows_per_block && a->splits == b->splits &&
           a->is_transposed == b->is_transposed;
}

/* Insert the launches of all candidates for the product, which are of the device of found[0]. `device` is the one that
   computes. Return the number of choices. */
static int insert_launches(const struct core_pack *pack, const struct core_product *product, int device,
                           int is_transposed, struct core_choice *found, int count, int room)
{
    struct candidates candidates;
    const int device_of_kernels = (int)pack->kernels[found[0].kernel].device;
    if (!find_candidates(pack, product, device_of_kernels, CORE_COLUMN_MAJOR, &candidates) ||
        !are_predicted(&candidates))
        return count;
    for (int index = -1; next_candidate(&candidates, &index);) {
        struct timed_launch launches[LAUNCHES_OF_A_KERNEL];
        struct core_choice choice;
        double distance;
        const struct work work = work_of(pack, index, product);
        const int launch_count = fastest_launches(pack, index, &work, launches, LAUNCHES_OF_A_KERNEL, &distance);
        memset(&choice, 0, sizeof choice);
        choice.reason = CORE_PREDICTED;
        choice.kernel = index;
        choice.is_transposed = is_transposed;
        choice.merged = found[0].merged;
        set_measured(pack, product, 0, &choice);
        for (int i = 0; i < launch_count; ++i) {
            choice.rows_per_block = launches[i].rows;
            choice.splits = launches[i].splits;
            choice.us = launches[i].us;
            const struct core_choice full = completed(pack, product, device, choice);
            if (!full.is_too_large && !is_same_launch(&full, &found[0]))
                count = insert(found, count, room, &full);
        }
    }
    return count;
}

int core_contenders(const struct core_pack *pack, const struct core_product *product, int device,
                    struct core_choice *found, int room)
{
    found[0] = core_choose(pack, product, device);
    if (found[0].reason == CORE_NO_KERNEL)
        return 0;
    if (pack->devices[pack->kernels[found[0].kernel].device].is_host)
        return 1;
    const struct core_product computed = core_merged_product(product, (enum core_merged)found[0].merged);
    const struct core_product transposed = core_transposed_product(&computed);
    int count = insert_launches(pack, &computed, device, 0, found, 1, room);
    count = insert_launches(pack, &transposed, device, 1, found, count, room);
    double least_us = count > 1 ? found[1].us : HUGE_VAL;
    least_us = found[0].us > 0 && found[0].us < least_us ? found[0].us : least_us;
    while (count > 1 && found[count - 1].us > WORTH_TIMING * least_us)
        --count;
    return count;
}
