/* What a kernel is expected to take for a shape that was not tuned, and how it is started there. */

#ifndef TSM2_PREDICT_H
#define TSM2_PREDICT_H

#include "product.h"

enum { VECTOR_BYTES = 16 };

/* The product on the card of a winner, with the least times of its parts. */
struct work {
    double m, n, k, memory_us, arithmetic_us;
    int has_odd_lines; /* lines of A, or of B or C, are not whole vectors */
    double log_m, log_n, log_k;
};

/* `of_vendor`: whose lines are odd where those of A or B are not whole vectors of 16 bytes. */
struct work work_of(const struct product *product, const struct winner *winner, int of_vendor);

/* The winner's least expected time, and its launch. */
double best_launch(const struct winner *winner, const struct work *work, struct launch *launch);

/* Logarithms of ratios of measured to expected times, averaged, each with the reciprocal cube of its distance from the
   work as its weight; of short times they count for little at a longer `expected_us`. Begin with zeros, and `nearest`
   infinite. */
struct average {
    double weights, sum;
    double nearest; /* distance of the nearest */
};
void add_point(struct average *average, const struct point *point, const struct work *work, double expected_us);

/* What the winner's kernel is expected to take where best_launch says `plain_us`, by how much measured times differ
   from expected ones; `distance` from where it was measured. */
double carried_over_us(const struct winner *winner, const struct work *work, double plain_us, double *distance);

/* What the vendor is expected to take without an average. */
double plain_vendor_us(const struct work *work);

/* The work by which its distance from the vendor's points is told. */
struct work vectors_apart(struct work work);

/* What the vendor is expected to take, where the average is of its points. */
double vendor_us(const struct average *average, const struct work *work);

#endif
