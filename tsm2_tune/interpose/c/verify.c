/* Compare the kernel's result of a product with that of cuBLAS, on the host.

   Both sum the same k products in different orders. The bound of their difference is a rounding error, which grows with
   the square root of k, times the largest possible absolute value of the element: by the Cauchy-Schwarz inequality, the
   norm of a row of op(A) times the norm of a column of op(B). */

#include <math.h>
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

/* Copy a matrix between device memory and host memory, where it has no padding. Return whether that succeeded. */
static bool copy(const struct comparison *comparison, const void *device, int64_t ld, int64_t rows, int64_t columns,
                 void *host, bool to_device)
{
    const size_t bytes = (size_t)element_bytes(comparison->asked.type);
    struct copy_2d plan = {.width_bytes = (size_t)rows * bytes, .height = (size_t)columns};
    if (to_device) {
        plan.source_kind = ON_HOST, plan.source_host = host, plan.source_pitch = plan.width_bytes;
        plan.target_kind = ON_DEVICE, plan.target_device = (uintptr_t)device, plan.target_pitch = (size_t)ld * bytes;
    } else {
        plan.source_kind = ON_DEVICE, plan.source_device = (uintptr_t)device, plan.source_pitch = (size_t)ld * bytes;
        plan.target_kind = ON_HOST, plan.target_host = host, plan.target_pitch = plan.width_bytes;
    }
    const int mode = relax_captures();
    const bool is_done = driver()->copy(&plan, comparison->stream) == 0 && driver()->await_stream(comparison->stream) == 0;
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

static int64_t rows_of_a(const struct asked *asked) { return asked->transa == TSM2_N ? asked->m : asked->k; }
static int64_t columns_of_a(const struct asked *asked) { return asked->transa == TSM2_N ? asked->k : asked->m; }
static int64_t rows_of_b(const struct asked *asked) { return asked->transb == TSM2_N ? asked->k : asked->n; }
static int64_t columns_of_b(const struct asked *asked) { return asked->transb == TSM2_N ? asked->n : asked->k; }

struct comparison *begin_comparison(struct lane *lane, cu_stream stream, const struct asked *asked)
{
    struct comparison *made = calloc(1, sizeof *made);
    if (made == NULL)
        return NULL;
    const size_t bytes = (size_t)element_bytes(asked->type), of_c = (size_t)(asked->m * asked->n) * bytes;
    made->asked = *asked;
    made->stream = stream;
    made->alpha = absolute_factor(asked, asked->alpha);
    made->beta = absolute_factor(asked, asked->beta);
    made->a = malloc((size_t)(asked->m * asked->k) * bytes);
    made->b = malloc((size_t)(asked->k * asked->n) * bytes);
    made->before = malloc(of_c);
    made->ours = malloc(of_c);
    made->theirs = malloc(of_c);
    const bool has_memory = made->a && made->b && made->before && made->ours && made->theirs;
    if (has_memory && copy(made, asked->A, asked->lda, rows_of_a(asked), columns_of_a(asked), made->a, false) &&
        copy(made, asked->B, asked->ldb, rows_of_b(asked), columns_of_b(asked), made->b, false) &&
        copy(made, asked->C, asked->ldc, asked->m, asked->n, made->before, false) &&
        start_kernel(lane, stream, asked) == NOT_LEFT) {
        const bool is_there = copy(made, asked->C, asked->ldc, asked->m, asked->n, made->ours, false);
        if (copy(made, asked->C, asked->ldc, asked->m, asked->n, made->before, true) && is_there)
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

/* Return the largest difference divided by its bound; -1 if memory is short. Store the element's row and column in
   `place`, and the real parts of both results in `seen`. */
static double worst_share(const struct comparison *comparison, int64_t place[2], double seen[2])
{
    const struct asked *asked = &comparison->asked;
    const int type = asked->type;
    const bool is_half = type == TSM2_BF16 || type == TSM2_F16, is_double = type == TSM2_F64 || type == TSM2_C128;
    const double unit = ldexp(1, is_double ? -53 : -24);
    const double of_result = type == TSM2_BF16 ? ldexp(1, -8) : is_half ? ldexp(1, -11) : unit;
    const double growth = 8 * unit * (sqrt((double)asked->k) + 8);
    long double *rows = lengths(type, comparison->a, rows_of_a(asked), columns_of_a(asked), asked->transa == TSM2_N);
    long double *columns = lengths(type, comparison->b, rows_of_b(asked), columns_of_b(asked), asked->transb != TSM2_N);
    double worst = rows == NULL || columns == NULL ? -1 : 0;
    for (int64_t at = 0; worst >= 0 && at < asked->m * asked->n; ++at) {
        double ours[2], theirs[2], before[2];
        const int64_t row = at % asked->m, column = at / asked->m;
        element(type, comparison->ours, at, ours);
        element(type, comparison->theirs, at, theirs);
        element(type, comparison->before, at, before);
        const long double of_c = comparison->beta == 0 ? 0 : comparison->beta * hypotl(before[0], before[1]);
        const long double bound = growth * (comparison->alpha * rows[row] * columns[column] + of_c) +
                                  4 * of_result * hypotl(theirs[0], theirs[1]) + (is_half ? ldexp(1, -24) : 0);
        const double share = share_of_bound(ours, theirs, bound);
        if (share > worst) {
            worst = share;
            place[0] = row, place[1] = column;
            seen[0] = ours[0], seen[1] = theirs[0];
        }
    }
    free(rows);
    free(columns);
    return worst;
}

void end_comparison(struct comparison *comparison, struct line *line)
{
    const struct asked *asked = &comparison->asked;
    int64_t place[2] = {0, 0};
    double seen[2] = {0, 0}, worst = -1;
    if (line != NULL && copy(comparison, asked->C, asked->ldc, asked->m, asked->n, comparison->theirs, false))
        worst = worst_share(comparison, place, seen);
    if (worst >= 0) {
        atomic_fetch_add(&line->compared, 1);
        if (worst > line->worst)
            line->worst = worst;
    }
    if (worst > 1) {
        atomic_store(&line->decision, OFF);
        tell("%lldx%lldx%lld of %s: C[%lld, %lld] is %.9g by the kernel and %.9g by cuBLAS, a difference of %.3g times"
             " the bound: such products are left to cuBLAS",
             (long long)asked->m, (long long)asked->n, (long long)asked->k, names[asked->type], (long long)place[0],
             (long long)place[1], seen[0], seen[1], worst);
    }
    free_comparison(comparison);
}
