/* The model of times: what predict.c computes for choose.c. */

#ifndef TSM2_CORE_MODEL_H
#define TSM2_CORE_MODEL_H

#include "core.h"

/* Constants of the model. They were fitted to 1,033 winners measured on an H200: `python -m benchmarks.expected` prints
   the error of the prediction from one shape that a kernel won to the nearest other one. */
#define START_US 5.0 /* any launch: until the first loads arrive, and after the last store */
#define SUMS_US 2.0  /* splits: until the last block of a tile has arrived and read all partial sums */
#define SUMS_RATE 0.5   /* splits: share of the memory rate for partial sums */
#define CACHED_RATE 1.2 /* typical rate, in memory rates, of data that is read again and may be in the L2 */
#define IDLE_LOSS 0.3      /* share of an idle multiprocessor's bandwidth that the others cannot use */
#define LEAST_MEMORY_SHARE 0.95 /* least predicted time, in units of the time to move each operand and C once */
#define NEXT_TILE_US 0.5 /* from one tile of C to the next in the same resident block */
#define ENOUGH_BLOCKS 0.5 /* share of the resident blocks of its shape that could keep a multiprocessor busy */
#define USEFUL_BLOCKS 2.0 /* times the blocks of its shape, beyond which more blocks gain nothing */
#define SPARE_BLOCKS 2.0 /* f times fewer blocks slow it down by at least f over this; by f if it is persistent */
#define LONG_K 3.0 /* penalty if k exceeds what the kernel adds up in one pass, though not at its shape */
#define DISTANCE_PENALTY 0.05 /* e to this for each unit of distance from the kernel's nearest measured shape */
#define HOST_DISTANCE_PENALTY 0.5 /* the same on a host, whose times follow no memory rate */
#define DISTANCE_OFFSET 0.2 /* added to distances, so that no single measured time decides */
#define ODD_LINES_APART 2.0 /* squared distance between lines of whole vectors and other lines */
#define SHORT_BODY_US 50.0 /* predicted body of a point whose log ratio is halved at much longer times */
#define VENDOR_RATE 0.7    /* share of the device's arithmetic rate that cuBLAS reaches */
#define VENDOR_ODD_LINES 1.1 /* factor on cuBLAS's body if lines are not whole vectors */
#define VENDOR_VECTOR_EXTENT 0.05 /* in distances, for an extent of 1: cuBLAS multiplies vectors by other routines */
#define VENDOR_TILE_M 64.0 /* m of the product as cuBLAS pads it is a multiple */
#define VENDOR_TILE_N 32.0 /* the same of n */
#define VENDOR_TILE_K 32.0 /* the same of k */
#define WORTH_TIMING 2.0 /* launches are timed if predicted to take at most so many times the least time */
#define LEAST_GAIN 1.03  /* a kernel is used if cuBLAS is predicted to take so many times its time */
#define KNOWN_WITHIN 6.0 /* distance from the kernel's own shape up to which LEAST_GAIN suffices */
#define FAR_GAIN 0.25    /* e to this more for each unit of distance beyond it */

enum { VECTOR_BYTES = 16, MOST_SPLITS = 65535, MOST_ROWS = 1 << 30 };
#define UNBOUNDED 0x1p60 /* larger than any extent */

/* A kernel's facts that follow from the pack. */
struct core_fit {
    double log_m, log_n, log_k; /* of its shape */
    double loading_blocks; /* at its shape: resident blocks per multiprocessor, weighted by how full their tiles are */
    double busy_blocks; /* at its shape: resident blocks of a multiprocessor that has any */
    double resident_blocks; /* at its shape: blocks per multiprocessor if all are resident and have several tiles */
    int32_t first_point; /* its points: one at its shape, and one for each of its times */
    int32_t first_vendor_point, vendor_point_count;
};

struct core_point {
    double log_m, log_n, log_k;
    double has_odd_lines; /* 1 or 0 */
    double predicted_us; /* from the device's rates alone */
    double log_ratio; /* of the measured time to predicted_us */
};

/* A product on a device. */
struct work {
    double m, n, k;
    double log_m, log_n, log_k;
    double memory_us; /* to move each operand and C once */
    double arithmetic_us; /* at the device's arithmetic rate; 0: unknown */
    double has_odd_lines; /* 1 if lines of A, or of B or C, are not whole vectors; else 0 */
};

/* Return the product as work of a kernel, or of cuBLAS beside it. Leading dimensions of 0 mean no padding. */
struct work work_of(const struct core_pack *pack, int kernel, const struct core_product *product);
struct work vendor_work_of(const struct core_pack *pack, int kernel, const struct core_product *product);

/* Measured over predicted times, averaged. Begin with zeros, and `nearest` HUGE_VAL. */
struct average {
    double weights, sum;
    double nearest; /* distance of the nearest point */
};

/* Add a point to the average of a work whose time from rates alone is `plain_us`. */
void add_point(struct average *average, const struct core_point *point, const struct work *work, double plain_us);

/* A launch, and its time. */
struct timed_launch {
    int32_t rows, splits; /* as rows_per_block and splits of core_choice */
    double us;
};

/* Set a kernel's fastest launches, the fastest first, with times that are corrected by its measured times. Return how
   many there are, at most `room`, which is at least 1. `distance` is to the nearest of the measured shapes. */
int fastest_launches(const struct core_pack *pack, int kernel, const struct work *work, struct timed_launch *found,
                     int room, double *distance);

/* Return the index of a kernel's measured shape that is nearest to the work: 0 for its own shape, 1 for its first time at
   another shape. Lines of whole vectors are far from other lines. */
uint32_t nearest_point(const struct core_pack *pack, int kernel, const struct work *work);

/* Return the factor on a time at this distance from measured shapes. */
double distance_penalty(const struct core_pack *pack, int kernel, double distance);

/* Return cuBLAS's time from rates alone, and from the average of its points. */
double plain_vendor_us(const struct work *work);
double vendor_us(const struct average *average, const struct work *work);

/* Compute the fit and the points of a kernel, from `point` and `vendor_point` on. Return NULL, or what is wrong. */
const char *fit_kernel(const struct core_pack *pack, int kernel, int *point, int *vendor_point);

/* Return the work with the extents from which its distance to cuBLAS's points is computed. */
struct work with_vectors_apart(struct work work);

/* Return whether times of this kernel are predicted. */
int is_predicted(const struct core_pack *pack, int kernel);

#endif
