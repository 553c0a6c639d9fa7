/* Predict a kernel's time and its best launch for a shape that was not tuned.

   The same model as runtime/choice/predict.py, operation for operation. The pack has its predictions at the shapes where
   kernels were measured. */

#include "predict.h"

#include <math.h>

#define START_US 5.0
#define SUMS_US 2.0
#define SUMS_RATE 0.5
#define CACHED_RATE 1.2
#define BEYOND 3.0  /* times as long a kernel counts where k, not as where it won, is more than it sums up at once */
#define LEAST 0.95  /* of what the card takes for the bytes alone, below which no kernel is expected */
#define TURN_US 0.5 /* from one tile of C to the next that is computed in its place */
#define ENOUGH 0.5
#define MORE 2.0
#define SPARE 2.0
#define UNEVEN 0.3
#define VECTORS_EXTENT 0.05 /* in distances, instead of 1: another of the vendor's routines multiplies by a vector */
#define ODD_VENDOR 1.1
#define VENDOR_RATE 0.7 /* of the card's, at which the vendor's routines multiply */
#define MOSTLY_START_US 50.0
#define NEAR 0.2     /* added to distances */
#define ODD_AWAY 2.0 /* square of the distance between lines that are whole vectors and lines that are not */
#define MOST_SPLITS 65535.0 /* blocks of a grid in y */
#define MOST_ROWS 0x1p30    /* of a block */
#define EVER 0x1p60 /* an extent that none reaches */
enum { OPTIONS = 10 };

static const double waves_tried[OPTIONS] = {1, 2, 3, 4, 5, 6, 8, 12, 16, 24};

/* As fmin and fmax, of what is no NaN, without a call. */
static inline double least_of(double a, double b) { return a < b ? a : b; }
static inline double most_of(double a, double b) { return a > b ? a : b; }

static double or_all(int extent) { return extent > 0 ? (double)extent : EVER; }

/* A kernel's tiles for the work. */
struct tiles {
    double rows, columns;        /* of one */
    double down, across, steps;  /* how many there are, along k as well */
    double pieces;               /* steps of all tiles */
};

static struct tiles tiles_of(const struct division *division, const struct work *work)
{
    struct tiles t = {.rows = division->tile_rows, .columns = or_all(division->tile_columns)};
    t.down = ceil(work->m / t.rows);
    t.across = ceil(work->n / t.columns);
    t.steps = ceil(work->k / or_all(division->step));
    t.pieces = t.down * t.across * t.steps;
    return t;
}

static int is_odd(const struct product *product, const struct winner *winner, int x, int vector_bytes)
{
    const struct matrix *matrix = &product->matrices[x];
    const int order = winner->orders[x];
    const int64_t lines = order == ROW_MAJOR ? matrix->rows : matrix->columns;
    return lines > 1 && matrix->ld[order] * element_bytes((tsm2_type)product->type) % vector_bytes != 0;
}

struct work work_of(const struct product *product, const struct winner *winner, int of_vendor)
{
    const struct division *division = &winner->division;
    const int bytes = of_vendor ? VECTOR_BYTES : division->vector_bytes;
    const int other = !of_vendor && division->vectors_of_c ? 2 : 1;
    const int odd = is_odd(product, winner, 0, bytes) || is_odd(product, winner, other, bytes);
    const struct card *card = &pack_cards[winner->card];
    struct work work = {.m = (double)product->m, .n = (double)product->n, .k = (double)product->k, .has_odd_lines = odd};
    const double m = work.m, n = work.n, k = work.k;
    const double size = (double)element_bytes((tsm2_type)product->type);
    const double read = m * k + (winner->is_gram ? 0 : k * n), written = m * n;
    const double of_read = 1e-3 / card->read_gbytes_per_s;
    const double of_written = most_of(2e-3 / card->copy_gbytes_per_s - of_read, of_read);
    const int is_complex = product->type == TSM2_C64 || product->type == TSM2_C128;
    const double flops = (is_complex ? 8.0 : 2.0) * m * n * k, gflops = card->gflops[product->type];
    work.memory_us = size * (read * of_read + written * of_written);
    work.arithmetic_us = gflops > 0 ? flops / gflops * 1e-3 : 0;
    work.log_m = log(m), work.log_n = log(n), work.log_k = log(k);
    return work;
}

static double us_per_byte(const struct winner *winner)
{
    const double size = (double)element_bytes((tsm2_type)winner->type);
    return size * 1e-3 / pack_cards[winner->card].read_gbytes_per_s;
}

/* Blocks that have something to do. */
static double blocks_of(const struct winner *winner, const struct tiles *t, const struct work *work, double rows,
                        double splits)
{
    if (winner->launch.persistent)
        return least_of(splits, t->pieces);
    const double across = ceil(work->n / or_all(winner->launch.columns_per_block));
    return ceil(work->m / rows) * across * splits;
}

/* The start, and the sums of the splits. */
static double fixed_us(const struct winner *winner, const struct tiles *t, const struct work *work, double blocks,
                       double rows)
{
    const struct launch *launch = &winner->launch;
    if (!launch->has_workspace || (launch->persistent && work->k <= or_all(winner->division.step)))
        return START_US;
    const double sums = least_of(launch->persistent ? t->rows : rows, work->m) * least_of(t->columns, work->n) * blocks;
    return START_US + (SUMS_US + 2 / SUMS_RATE * us_per_byte(winner) * sums);
}

/* By how much so many times fewer blocks than where it won slow a multiprocessor down. */
static double slowed(const struct winner *winner, double fewer)
{
    const double few = most_of(fewer, 1 / MORE);
    const double slower = sqrt(1.0 + ENOUGH * few * (ENOUGH * few)) / sqrt(1.0 + ENOUGH * ENOUGH);
    return most_of(few / (winner->launch.persistent ? 1.0 : SPARE), slower);
}

/* Tiles of C, and parts of k, that are computed one after the other where a block has its place; of blocks
   that have the next tile on its way only the parts of k. */
static double turns_of(const struct winner *winner, const struct tiles *t, const struct work *work, double blocks,
                       double splits)
{
    const struct division *division = &winner->division;
    const double at_a_time = least_of(blocks, (double)pack_cards[winner->card].sms * division->resident);
    const double each = t->down * t->across * (winner->launch.persistent ? 1.0 : splits) / at_a_time;
    return (division->flows ? 1.0 : most_of(each, 1.0)) * ceil(work->k / or_all(division->deepest));
}

/* The body of a kernel that is as fast as the card. */
static double body_us(const struct winner *winner, const struct tiles *t, const struct work *work, double blocks,
                      double rows, double splits)
{
    const struct division *division = &winner->division;
    const double m = work->m, n = work->n, k = work->k, sms = pack_cards[winner->card].sms;
    const int persistent = winner->launch.persistent;
    const int keeps_b = !persistent && k <= or_all(division->longest) * splits; /* for all tiles of a block */
    const double b_reads = keeps_b ? ceil(m / rows) : t->down;
    const double again = (t->across - 1) * m * k + (b_reads - 1) * k * n;
    const double rewritten = 2 * floor((k - 1) / or_all(division->deepest)) * m * n;
    const double slower = CACHED_RATE / division->cached_rate; /* than lines that are read again mostly are */
    double memory = work->memory_us + us_per_byte(winner) * slower * (again / CACHED_RATE + rewritten);
    const double width = most_of(division->width > 0 ? division->width : division->tile_columns, 1.0);
    const double multiplied = (ceil(n / width) * width) * (ceil(k / division->depth) * division->depth);
    const double whole = t->down * t->rows * multiplied;
    double arithmetic = work->arithmetic_us / division->arithmetic_rate * (whole / (m * n * k));

    const double pieces = persistent ? t->pieces : t->steps, parts = persistent ? blocks : splits;
    const double share = ceil(pieces / parts) * parts / pieces;
    const double waves = ceil(blocks / (sms * division->resident));
    const double most = waves > 1 ? waves * division->resident : ceil(blocks / sms);
    const double longest = share * most * sms / blocks;
    const double idle = blocks > sms ? 1 + UNEVEN * (longest - 1) : 1;
    const double filled = persistent ? 1.0 : m / (t->down * t->rows);
    const double at_work = least_of(blocks / sms, division->resident) * filled;
    memory *= idle * slowed(winner, winner->at_work / at_work);
    arithmetic *= longest * slowed(winner, winner->busy / least_of(most_of(blocks / sms, 1.0), division->resident));
    const double turn_us = TURN_US * (turns_of(winner, t, work, blocks, splits) - 1);
    const double diagonal = sqrt(memory * memory + arithmetic * arithmetic + turn_us * turn_us);
    return (work->has_odd_lines ? division->odd_lines : 1.0) * diagonal;
}

/* Rows of a block: as many as where the kernel won, but no more than leave every multiprocessor what it holds. */
static double rows_of_block(const struct winner *winner, const struct tiles *t, const struct work *work)
{
    const struct launch *launch = &winner->launch;
    if (launch->rows_per_block <= winner->division.tile_rows)
        return launch->rows_per_block;
    const double across = ceil(work->n / or_all(launch->columns_per_block));
    const double held = (double)pack_cards[winner->card].sms * winner->division.resident;
    const double most = floor(t->down * across * launch->splits / held);
    return most_of(least_of(floor(launch->rows_per_block / t->rows), most), 1) * t->rows;
}

/* Splits of k, or all blocks of a persistent kernel: a whole number for each multiprocessor, or just less. */
static double splits_of(const struct winner *winner, const struct tiles *t, const struct work *work, double rows,
                        double waves)
{
    const struct launch *launch = &winner->launch;
    const double sms = pack_cards[winner->card].sms;
    if (!launch->has_workspace)
        return 1;
    if (launch->persistent)
        return least_of(least_of(waves, most_of(floor(launch->splits / sms), 1)) * sms, t->pieces);
    const double across = ceil(work->n / or_all(launch->columns_per_block));
    const double blocks = ceil(work->m / rows) * across;
    return least_of(most_of(floor(waves * sms / blocks), 1), least_of(t->steps, MOST_SPLITS));
}

/* Of a kernel whose blocks have several tiles and all ran at once where it won: as few splits as keep B, or some more,
   and as many rows as let all blocks run at once. */
static void run_at_once(const struct winner *winner, const struct tiles *t, const struct work *work, double waves,
                        double *rows, double *splits)
{
    const struct launch *launch = &winner->launch;
    const double fewest = ceil(work->k / or_all(winner->division.longest));
    const double across = ceil(work->n / or_all(launch->columns_per_block));
    *splits = launch->has_workspace ? least_of(fewest * waves, least_of(t->steps, MOST_SPLITS)) : 1;
    const double of_block =
        ceil(t->down * across * *splits / (pack_cards[winner->card].sms * winner->waves_won));
    *rows = least_of(most_of(of_block, 1), least_of(t->down, floor(MOST_ROWS / t->rows))) * t->rows;
}

double best_launch(const struct winner *winner, const struct work *work, struct launch *launch)
{
    const struct tiles t = tiles_of(&winner->division, work);
    const double rows_won = rows_of_block(winner, &t, work);
    double least = INFINITY, rows_before = 0, splits_before = 0;
    *launch = winner->launch;
    for (int i = 0; i < OPTIONS; ++i) {
        double rows = rows_won, splits = splits_of(winner, &t, work, rows, waves_tried[i]);
        if (winner->waves_won > 0)
            run_at_once(winner, &t, work, waves_tried[i], &rows, &splits);
        if (rows == rows_before && splits == splits_before)
            continue;
        rows_before = rows, splits_before = splits;
        const double blocks = blocks_of(winner, &t, work, rows, splits);
        const double us = fixed_us(winner, &t, work, blocks, rows) +
                          body_us(winner, &t, work, blocks, rows, splits);
        if (us < least) {
            least = us;
            launch->splits = (int)splits;
            launch->rows_per_block = (int)rows;
        }
    }
    return least;
}

void add_point(struct average *average, const struct point *point, const struct work *work, double expected_us)
{
    const double m = point->log_m - work->log_m, n = point->log_n - work->log_n, k = point->log_k - work->log_k;
    const double odd = point->has_odd_lines - work->has_odd_lines;
    const double away = sqrt(m * m + n * n + k * k + ODD_AWAY * odd * odd), near = away + NEAR;
    const double weight = 1 / (near * near * near);
    average->weights += weight;
    const double body_us = point->expected_us - START_US, of_body = body_us / (body_us + MOSTLY_START_US);
    const double counts = of_body + (1 - of_body) * least_of(point->expected_us / expected_us, 1);
    average->sum += weight * (point->log_ratio * counts);
    average->nearest = least_of(average->nearest, away);
}

double carried_over_us(const struct winner *winner, const struct work *work, double plain_us, double *distance)
{
    struct average average = {0, 0, INFINITY};
    for (int i = 0; i < winner->point_count; ++i)
        add_point(&average, &pack_points[winner->first_point + i], work, plain_us);
    *distance = average.nearest;
    const double deepest = or_all(winner->division.deepest);
    const double beyond = work->k > deepest && (double)winner->k <= deepest ? BEYOND : 1.0;
    return beyond * most_of(exp(average.sum / average.weights) * plain_us, LEAST * work->memory_us);
}

double plain_vendor_us(const struct work *work)
{
    double m = work->m, n = work->n, k = work->k;
    if (least_of(m, n) > 1) /* tiles, of which a product with a vector has none */
        m = ceil(m / 64) * 64, n = ceil(n / 32) * 32, k = ceil(k / 32) * 32;
    const double arithmetic = work->arithmetic_us / VENDOR_RATE * (m * n * k / (work->m * work->n * work->k));
    return START_US + (work->has_odd_lines ? ODD_VENDOR : 1.0) * hypot(work->memory_us, arithmetic);
}

struct work vectors_apart(struct work work)
{
    work.log_m = work.m == 1 ? log(VECTORS_EXTENT) : work.log_m;
    work.log_n = work.n == 1 ? log(VECTORS_EXTENT) : work.log_n;
    return work;
}

double vendor_us(const struct average *average, const struct work *work)
{
    return exp(average->sum / average->weights) * plain_vendor_us(work);
}
