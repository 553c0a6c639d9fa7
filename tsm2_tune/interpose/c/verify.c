/* Compare the kernel's result of a product with that of cuBLAS, on the host.

   Both sum the same k products in different orders. The bound of their difference is a rounding error, which grows with
   the square root of k, times the largest possible absolute value of the element: by the Cauchy-Schwarz inequality, the
   norm of a row of op(A) times the norm of a column of op(B). */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "standin.h"

struct comparison {
    struct asked asked;
    cu_stream stream;
    void *a, *b, *before, *ours, *theirs; /* host copies without padding: A, B, C before, the kernel's C, cuBLAS's C */
    double alpha, beta;                   /* absolute values */
};

static const char *const names[] = {"f32", "f64", "c64", "c128", "bf16", "f16"};

/* The matrices of one operand in device memory, column-major. */
struct matrices {
    const void *address;
    int64_t ld, stride, rows, columns, count;
};

enum { A_OF, B_OF, C_OF };
static struct matrices matrices_of(const struct asked *asked, int which)
{
    const bool a_is_plain = asked->transa == TSM2_N, b_is_plain = asked->transb == TSM2_N;
    const int64_t m = asked->m, n = asked->n, k = asked->k;
    const struct matrices all[] = {
        {asked->A, asked->lda, asked->stride_a, a_is_plain ? m : k, a_is_plain ? k : m, asked->batches},
        {asked->B, asked->ldb, asked->stride_b, b_is_plain ? k : n, b_is_plain ? n : k, asked->batches},
        {asked->C, asked->ldc, asked->stride_c, m, n, asked->batches},
    };
    struct matrices found = all[which];
    if (found.stride == 0)
        found.count = 1; /* all products share it */
    return found;
}

static int64_t elements_of(const struct matrices *matrices) { return matrices->rows * matrices->columns * matrices->count; }

/* Copy matrices between device memory and host memory, where they have no padding. The copies are of the columns of one
   matrix, or of one column of all matrices, whichever are fewer. Return whether that succeeded. */
static bool copy(const struct comparison *comparison, const struct matrices *of, void *host, bool to_device)
{
    const size_t bytes = (size_t)element_bytes(comparison->asked.type), line = (size_t)of->rows * bytes;
    const size_t ld = (size_t)of->ld * bytes, stride = (size_t)of->stride * bytes, whole = (size_t)of->columns * line;
    const bool by_columns = of->columns < of->count;
    const int64_t copies = by_columns ? of->columns : of->count;
    const int mode = relax_captures();
    bool is_done = true;
    for (int64_t at = 0; at < copies && is_done; ++at) {
        struct copy_2d plan = {.width_bytes = line, .height = (size_t)(by_columns ? of->count : of->columns)};
        const uintptr_t device = (uintptr_t)of->address + (size_t)at * (by_columns ? ld : stride);
        char *const there = (char *)host + (size_t)at * (by_columns ? line : whole);
        if (to_device) {
            plan.source_kind = ON_HOST, plan.source_host = there, plan.source_pitch = by_columns ? whole : line;
            plan.target_kind = ON_DEVICE, plan.target_device = device, plan.target_pitch = by_columns ? stride : ld;
        } else {
            plan.source_kind = ON_DEVICE, plan.source_device = device, plan.source_pitch = by_columns ? stride : ld;
            plan.target_kind = ON_HOST, plan.target_host = there, plan.target_pitch = by_columns ? whole : line;
        }
        is_done = driver()->copy(&plan, comparison->stream) == 0;
    }
    is_done = driver()->await_stream(comparison->stream) == 0 && is_done;
    restore_captures(mode);
    return is_done;
}

static double half(const unsigned char *at, bool is_bfloat)
{
    uint16_t bits;
    memcpy(&bits, at, sizeof bits);
    if (is_bfloat) {
        const uint32_t wide = (uint32_t)bits << 16;
        float value;
        memcpy(&value, &wide, sizeof value);
        return (double)value;
    }
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const double sign = bits >> 15 ? -1.0 : 1.0;
    if (exponent == 31)
        return fraction ? (double)NAN : sign * (double)INFINITY;
    return sign * (exponent == 0 ? ldexp(fraction, -24) : ldexp(fraction + 1024, exponent - 25));
}

/* Read the element at index `place`. Store its real and imaginary part in `parts`. */
static void element(int type, const void *matrix, int64_t place, double parts[2])
{
    const unsigned char *at = (const unsigned char *)matrix + place * element_bytes(type);
    float small[2] = {0, 0};
    parts[0] = parts[1] = 0;
    switch (type) {
    case TSM2_F32:
    case TSM2_C64:
        memcpy(small, at, type == TSM2_C64 ? sizeof small : sizeof *small);
        parts[0] = (double)small[0], parts[1] = (double)small[1];
        return;
    case TSM2_F64:
    case TSM2_C128:
        memcpy(parts, at, type == TSM2_C128 ? 2 * sizeof *parts : sizeof *parts);
        return;
    default:
        parts[0] = half(at, type == TSM2_BF16);
    }
}

static double absolute_factor(const struct asked *asked, const void *factor)
{
    const bool is_half = asked->type == TSM2_BF16 || asked->type == TSM2_F16;
    double parts[2], room[2];
    element(is_half ? (int)TSM2_F32 : asked->type, pack_factor(asked, factor, room), 0, parts);
    return hypot(parts[0], parts[1]);
}

/* Return the Euclidean norms of a matrix's rows or columns; NULL if memory is short. They are computed in long double,
   which does not overflow with the square of a double. */
static long double *lengths(int type, const void *matrix, int64_t rows, int64_t columns, bool of_rows)
{
    long double *found = calloc((size_t)(of_rows ? rows : columns), sizeof *found);
    if (found == NULL)
        return NULL;
    for (int64_t column = 0; column < columns; ++column)
        for (int64_t row = 0; row < rows; ++row) {
            double parts[2];
            element(type, matrix, column * rows + row, parts);
            const long double real = parts[0], imaginary = parts[1];
            found[of_rows ? row : column] += real * real + imaginary * imaginary;
        }
    for (int64_t at = 0; at < (of_rows ? rows : columns); ++at)
        found[at] = sqrtl(found[at]);
    return found;
}

static void free_comparison(struct comparison *comparison)
{
    free(comparison->a);
    free(comparison->b);
    free(comparison->before);
    free(comparison->ours);
    free(comparison->theirs);
    free(comparison);
}

struct comparison *begin_comparison(struct lane *lane, cu_stream stream, const struct asked *asked)
{
    struct comparison *made = calloc(1, sizeof *made);
    if (made == NULL)
        return NULL;
    const struct matrices a = matrices_of(asked, A_OF), b = matrices_of(asked, B_OF), c = matrices_of(asked, C_OF);
    const size_t bytes = (size_t)element_bytes(asked->type), of_c = (size_t)elements_of(&c) * bytes;
    made->asked = *asked;
    made->stream = stream;
    made->alpha = absolute_factor(asked, asked->alpha);
    made->beta = absolute_factor(asked, asked->beta);
    made->a = malloc((size_t)elements_of(&a) * bytes);
    made->b = malloc((size_t)elements_of(&b) * bytes);
    made->before = malloc(of_c);
    made->ours = malloc(of_c);
    made->theirs = malloc(of_c);
    const bool has_memory = made->a && made->b && made->before && made->ours && made->theirs;
    if (has_memory && copy(made, &a, made->a, false) && copy(made, &b, made->b, false) &&
        copy(made, &c, made->before, false) && start_kernel(lane, stream, asked) == NOT_LEFT) {
        const bool is_there = copy(made, &c, made->ours, false);
        if (copy(made, &c, made->before, true) && is_there)
            return made;
    }
    free_comparison(made);
    return NULL;
}

/* Return the difference of two elements divided by the bound: infinity if only one is finite, 0 if neither is. */
static double share_of_bound(const double ours[2], const double theirs[2], long double bound)
{
    const bool is_finite = isfinite(theirs[0]) && isfinite(theirs[1]);
    if (!is_finite || !(isfinite(ours[0]) && isfinite(ours[1])))
        return is_finite == (isfinite(ours[0]) && isfinite(ours[1])) ? 0 : (double)INFINITY;
    const long double real = (long double)ours[0] - theirs[0], imaginary = (long double)ours[1] - theirs[1];
    const long double difference = hypotl(real, imaginary);
    return difference == 0 ? 0 : (double)(difference / bound);
}

/* The element with the largest difference, divided by its bound. */
struct worst {
    double share; /* -1: memory is short */
    int64_t product, row, column;
    double ours, theirs; /* real parts */
};

/* Compare the results of one product of the batch with the worst so far. */
static void compare_product(const struct comparison *comparison, int64_t product, struct worst *worst)
{
    const struct asked *asked = &comparison->asked;
    const int type = asked->type;
    const bool is_half = type == TSM2_BF16 || type == TSM2_F16, is_double = type == TSM2_F64 || type == TSM2_C128;
    const double unit = ldexp(1, is_double ? -53 : -24);
    const double of_result = type == TSM2_BF16 ? ldexp(1, -8) : is_half ? ldexp(1, -11) : unit;
    const double growth = 8 * unit * (sqrt((double)asked->k) + 8);
    const struct matrices a = matrices_of(asked, A_OF), b = matrices_of(asked, B_OF);
    const size_t bytes = (size_t)element_bytes(type);
    const char *const of_a = (const char *)comparison->a + (a.count > 1 ? (size_t)(product * a.rows * a.columns) * bytes : 0);
    const char *const of_b = (const char *)comparison->b + (b.count > 1 ? (size_t)(product * b.rows * b.columns) * bytes : 0);
    long double *rows = lengths(type, of_a, a.rows, a.columns, asked->transa == TSM2_N);
    long double *columns = lengths(type, of_b, b.rows, b.columns, asked->transb != TSM2_N);
    if (rows == NULL || columns == NULL)
        worst->share = -1;
    for (int64_t at = 0; worst->share >= 0 && at < asked->m * asked->n; ++at) {
        double ours[2], theirs[2], before[2];
        const int64_t row = at % asked->m, column = at / asked->m, place = product * asked->m * asked->n + at;
        element(type, comparison->ours, place, ours);
        element(type, comparison->theirs, place, theirs);
        element(type, comparison->before, place, before);
        const long double of_c = comparison->beta == 0 ? 0 : comparison->beta * hypotl(before[0], before[1]);
        const long double bound = growth * (comparison->alpha * rows[row] * columns[column] + of_c) +
                                  4 * of_result * hypotl(theirs[0], theirs[1]) + (is_half ? ldexp(1, -24) : 0);
        const double share = share_of_bound(ours, theirs, bound);
        if (share > worst->share) {
            const struct worst found = {share, product, row, column, ours[0], theirs[0]};
            *worst = found;
        }
    }
    free(rows);
    free(columns);
}

void end_comparison(struct comparison *comparison, struct line *line)
{
    const struct asked *asked = &comparison->asked;
    const struct matrices c = matrices_of(asked, C_OF);
    struct worst worst = {.share = -1};
    if (line != NULL && copy(comparison, &c, comparison->theirs, false))
        worst.share = 0;
    for (int64_t product = 0; worst.share >= 0 && product < asked->batches; ++product)
        compare_product(comparison, product, &worst);
    if (worst.share >= 0) {
        atomic_fetch_add(&line->compared, 1);
        if (worst.share > line->worst)
            line->worst = worst.share;
    }
    if (worst.share > 1) {
        char batch[32] = "", of_product[48] = "";
        if (asked->batches > 1) {
            snprintf(batch, sizeof batch, "%lld*", (long long)asked->batches);
            snprintf(of_product, sizeof of_product, " of product %lld", (long long)worst.product);
        }
        atomic_store(&line->decision, OFF);
        tell("%s%lldx%lldx%lld of %s: C[%lld, %lld]%s is %.9g by the kernel and %.9g by cuBLAS, a difference of %.3g times"
             " the bound: such products are left to cuBLAS",
             batch, (long long)asked->m, (long long)asked->n, (long long)asked->k, names[asked->type],
             (long long)worst.row, (long long)worst.column, of_product, worst.ours, worst.theirs, worst.share);
    }
    free_comparison(comparison);
}
