/* The model of times: what predict.c computes for choose.c and pack.c. */

#ifndef TSM2_CORE_MODEL_H
#define TSM2_CORE_MODEL_H

#include "core.h"

#include <math.h>

/* Constants of the model. docs/prediction.md says which are fitted to measured times, and which are chosen. */
#define START_US 5.0 /* any launch: until the first loads arrive, and after the last store */
#define SUMS_US 2.0 /* kernels with a workspace: until the last block of a tile has read all partial sums */
#define SUMS_RATE 0.5 /* kernels with a workspace: share of the memory rate for partial sums */
#define CACHED_RATE 1.2 /* typical rate, in memory rates, of data that is read again and may be in the L2 */
#define IDLE_LOSS 0.3      /* share of an idle multiprocessor's bandwidth that the others cannot use */
#define LEAST_MEMORY_SHARE 0.95 /* a predicted time is at least this times the time to move each operand and C once */
#define NEXT_BLOCK_US 2.0 /* in a batch, added for each further block in a slot of a multiprocessor: on an H200, of 16,384 products of
                             32 x 32 x 32 (f32), and of 32,552 of 16 x 16 x 16 (f64) */
#define BATCH_STEP_US 0.7 /* least time of a step along k of a resident block of a batch: its loads arrive, then its
                             products are added. On an H200, 0.7 to 1.1 for products of T by inner_fma */
#define NEXT_TILE_US 0.5 /* from one tile of C to the next in the same resident block */
#define NEXT_PERSISTENT_TILE_US 3.0 /* the same in a persistent kernel */
#define GENERAL_CODE 1.45 /* factor if a kernel of small products has no code for these extents: on an H200, 1.40 to
                             1.47 for 500,000 products of 8 x 8 x 8 (f32) */
#define ENOUGH_BLOCKS 0.5 /* share of the blocks of its own shape with which a multiprocessor waits for latency as much
                              as for throughput */
#define USEFUL_BLOCKS 2.0 /* so many times the blocks per multiprocessor of its own shape: more blocks gain nothing */
#define SPARE_BLOCKS 2.0 /* f times fewer blocks slow it down at least f / this times; f times if it is persistent */
#define LONG_K 3.0 /* factor if k exceeds k_per_pass, but not at the kernel's own shape */
#define DISTANCE_PENALTY 0.05 /* factor on compared times: e to this for each unit of distance from a measured shape */
#define HOST_DISTANCE_PENALTY 0.5 /* the same on a host, whose times follow no memory rate */
#define DISTANCE_OFFSET 0.2 /* added to distances, so that no single measured time decides */
#define NO_VECTORS_APART 2.0 /* added to the squared distance if the kernel can use vectors at only one of two shapes */
#define SHORT_BODY_US 50.0 /* if a measured shape takes this longer than START_US, half its log ratio counts for a long
                               product */
#define VENDOR_RATE 0.7    /* share of the device's arithmetic rate that cuBLAS reaches */
#define VENDOR_UNALIGNED_LINES 1.1 /* factor on cuBLAS's time without the start if A or B has unaligned lines */
#define VENDOR_UNALIGNED_16BIT_LINES 1.6 /* the same for elements of 16 bits */
#define VENDOR_VECTOR_EXTENT 0.05 /* in distances, for an extent of 1: cuBLAS multiplies vectors by other routines */
#define VENDOR_TILE_BYTES 256.0 /* cuBLAS is modelled as if it padded columns of C to a multiple of this */
#define VENDOR_TILE_N 32.0 /* and n to a multiple of this */
#define VENDOR_TILE_K 32.0 /* and k */
#define VENDOR_BATCH_STEP_US 0.006 /* in a batch: for each element of k, as if cuBLAS did not split it */
#define VENDOR_BATCH_VECTOR_STEP_US 0.0015 /* the same if m or n is 1 */
#define VENDOR_BATCH_VECTOR_US 0.0006 /* and for each product */
#define VENDOR_BATCH_VECTOR_MEMORY 1.5 /* factor on the memory time of a batch if m or n is 1 */
#define WORTH_TIMING 2.0 /* launches are timed if predicted to take at most so many times the least time */
#define CONFIDENCE 0.9 /* a kernel is used if the logarithm of its predicted gain is at least this times its error */
#define DISTANCE_ERROR 0.9 /* times the distance from measured shapes: a term of the error factor */

enum { VECTOR_BYTES = 16, SECTOR_BYTES = 32, MOST_SPLITS = 65535, MOST_ROWS = 1 << 30 };
enum { MOST_ONE_EACH = 65535 }; /* products of a kernel that is CORE_ONE_EACH: blocks of a grid in z */
#define UNBOUNDED 0x1p60 /* larger than any extent */

/* Facts of a kernel that follow from the pack. */
struct core_derived {
    double log_m, log_n, log_k, log_batch; /* of its own shape */
    double loading_blocks; /* at its own shape: resident blocks per multiprocessor, times the mean filled share of their
                              tiles */
    double busy_blocks; /* at its own shape: mean resident blocks of the multiprocessors that have any */
    double resident_blocks; /* at its own shape: blocks per multiprocessor if all are resident and have several tiles;
                               else 0 */
    int32_t first_point; /* its points: one at its own shape, then one for each of its times */
    int32_t first_vendor_point, vendor_point_count;
};

/* A measured time at a shape. */
struct core_point {
    double log_m, log_n, log_k, log_batch;
    double lacks_vectors; /* as in struct work */
    double log_padding; /* as in struct work */
    double rates_us; /* predicted from the device's rates and the kernel's fitted rates, without its measured times */
    double log_ratio; /* logarithm of the measured time divided by rates_us */
};

/* A product as a kernel, or cuBLAS, computes it on a device: what the model needs of both. */
struct work {
    double m, n, k; /* of one product */
    double batch; /* products */
    double log_m, log_n, log_k, log_batch;
    double element_bytes;
    double memory_us; /* to move each operand and C once */
    double arithmetic_us; /* at the device's arithmetic rate, without padding; 0: unknown */
    double least_us; /* least predicted time of a kernel */
    double lacks_vectors; /* 1 if the kernel cannot use vectors, else 0; of cuBLAS: if A or B has unaligned lines */
    double log_padding; /* logarithm of the operations of whole tiles divided by the product's; 0 for cuBLAS */
    int leaves_out_shape; /* as in core_product */
};

/* Return the product as a kernel computes it; as cuBLAS computes it on the kernel's device in the kernel's storage
   orders. A leading dimension of 0 means that the matrix is contiguous. */
struct work work_of(const struct core_pack *pack, int index, const struct core_product *product);
struct work vendor_work_of(const struct core_pack *pack, int index, const struct core_product *product);

/* A weighted average of points. Initialize it with zeros, and `nearest` with HUGE_VAL. */
struct average {
    double weights, sum; /* sums of weights, and of weighted logarithms of ratios */
    double nearest; /* distance of the nearest point */
};

/* Add a point to the average for a product whose time from rates is `rates_us`. */
void add_point(struct average *average, const struct core_point *point, const struct work *work, double rates_us);

/* A launch, and its time. */
struct timed_launch {
    int32_t rows, splits; /* as rows_per_block and splits of core_choice */
    double us;
};

/* Set `found` to a kernel's fastest launches, the fastest first, with times that are corrected by its measured times.
   Return their number, at most `room`, which is at least 1. Set `distance` to the distance of its nearest point. */
int fastest_launches(const struct core_pack *pack, int index, const struct work *work, struct timed_launch *found,
                     int room, double *distance);

/* Return which of a kernel's points is nearest: 0 for its own shape, 1 for its first time at another shape. Set its
   distance, which is that of the extents, of the padding and of the use of vectors (NO_VECTORS_APART). */
uint32_t nearest_point(const struct core_pack *pack, int index, const struct work *work, double *distance);

/* Return the factor by which the choice multiplies the predicted time of a kernel whose nearest point is this far. */
double distance_penalty(const struct core_pack *pack, int index, double distance);

/* Return cuBLAS's time from the device's rates; its predicted time from the average of its points. */
double vendor_rates_us(const struct work *work);
double vendor_us(const struct average *average, const struct work *work);

/* Compute the derived facts and the points of a kernel. Its points begin at `next_point` and `next_vendor_point`,
   which are advanced past them. Return NULL, or what is wrong. */
const char *derive_kernel(const struct core_pack *pack, int index, int *next_point, int *next_vendor_point);

/* Return the work with logarithms that put products with a vector far from other products: cuBLAS computes them by
   other routines. Distances to cuBLAS's points are computed from it. */
struct work work_for_vendor_distance(struct work work);

/* Return the Euclidean distance of two shapes from the differences of the logarithms of m, n, k and the number of
   products. `squared` is added to the squared distance. */
static inline double log_distance(double m, double n, double k, double batch, double squared)
{
    return sqrt(m * m + n * n + k * k + (batch * batch + squared));
}

/* Return the least predicted gain with which a kernel is used. */
double least_gain(const struct core_pack *pack, const struct core_choice *choice);

/* Return whether the kernel's shared memory holds a product of these extents, which a CORE_SHARED kernel needs. */
int fits_shared_memory(const struct core_kernel *kernel, int64_t m, int64_t n, int64_t k);

/* Return whether the device's rates and the kernel's occupancy are known, so that its times can be predicted. */
int is_predicted(const struct core_pack *pack, int index);

#endif
