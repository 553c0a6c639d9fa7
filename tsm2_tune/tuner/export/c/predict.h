/* Predict a kernel's time and its best launch for a shape that was not tuned: runtime/choice/predict.py in C. */

#ifndef TSM2_PREDICT_H
#define TSM2_PREDICT_H

#include "product.h"

enum { VECTOR_BYTES = 16 };

/* A product on a winner's card, with the least time of its memory traffic and of its arithmetic. */
struct work {
    double m, n, k, memory_us, arithmetic_us;
    int has_odd_lines; /* lines of A, or of B or C, are not whole vectors */
    double log_m, log_n, log_k;
};

/* With `of_vendor` lines are odd if those of A or B are no multiple of 16 bytes. */
struct work work_of(const struct product *product, const struct winner *winner, int of_vendor);

/* The winner's least predicted time, and its launch. */
double best_launch(const struct winner *winner, const struct work *work, struct launch *launch);

/* The mean of the logarithms of measured over predicted times, weighted by the reciprocal cube of the distance. Ratios of
   short times count little at a longer `expected_us`. Begin with zeros, and `nearest` infinite. */
struct average {
    double weights, sum;
    double nearest; /* distance of the nearest point */
};
void add_point(struct average *average, const struct point *point, const struct work *work, double expected_us);

/* Correct best_launch's `plain_us` by the ratio of measured to predicted times. `distance` is to the nearest measured
   shape. */
double carried_over_us(const struct winner *winner, const struct work *work, double plain_us, double *distance);

/* The vendor's predicted time before its correction. */
double plain_vendor_us(const struct work *work);

/* The work with the extents from which its distance to the vendor's points is computed. */
struct work vectors_apart(struct work work);

/* The vendor's predicted time, corrected by the average of its points. */
double vendor_us(const struct average *average, const struct work *work);

#endif
