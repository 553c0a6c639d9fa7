/* The choice of a winner for a product: runtime/choice/choose.py in C. */

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "predict.h"

/* Penalty: e to this for each unit of distance from the kernel's nearest measured shape. */
#define DOUBT 0.05

#define NO_GAIN 1.03 /* use a kernel only if the vendor is predicted to be this many times slower */
#define KNOWN_WITHIN 6.0  /* distance from the winner's shape up to which NO_GAIN suffices */
#define DOUBT_BEYOND 0.25 /* beyond it, e to this more for each unit of distance */

int fits_operands(const struct winner *winner, const struct product *product)
{
    return winner->type == product->type && product->matrices[0].ld[winner->orders[0]] != 0 &&
           product->matrices[1].ld[winner->orders[1]] != 0 && winner->conjugates[0] == product->conjugates[0] &&
           winner->conjugates[1] == product->conjugates[1] && (product->is_gram || !winner->is_gram);
}

static int fits(const struct winner *winner, const struct product *product)
{
    return fits_operands(winner, product) && product->matrices[2].ld[winner->orders[2]] != 0;
}

static double distance(const struct product *product, const struct winner *winner)
{
    const double x = log((double)winner->m) - log((double)product->m);
    const double y = log((double)winner->n) - log((double)product->n);
    const double z = log((double)winner->k) - log((double)product->k);
    return sqrt(x * x + y * y + z * z);
}

/* Whether a comes before b if they are equally near, or have equal predictions. */
static int comes_before(const struct winner *a, const struct winner *b)
{
    if (a->is_gram != b->is_gram)
        return a->is_gram;
    return a->median_us < b->median_us;
}

/* The device whose winners the product may get: this one if it has any, else the first that has. */
static const char *device_for(const struct product *product, const char *device)
{
    const char *other = NULL;
    for (int i = 0; i < pack_winner_count; ++i) {
        const struct winner *winner = &pack_winners[i];
        if (!fits(winner, product))
            continue;
        if (strcmp(device, winner->device) == 0)
            return winner->device;
        if (other == NULL)
            other = winner->device;
    }
    return other;
}

/* The index of the next winner of the device that fits, from i on; pack_winner_count if there is none. */
static int next_fitting(int i, const struct product *product, const char *device)
{
    while (i < pack_winner_count &&
           !(fits(&pack_winners[i], product) && strcmp(device, pack_winners[i].device) == 0))
        ++i;
    return i;
}

/* The nearest winner of the device. *is_known: all of its winners have predictions. */
static struct match nearest(const struct product *product, const char *device, int *is_known)
{
    struct match found = {.winner = NULL};
    *is_known = 1;
    for (int i = next_fitting(0, product, device); i < pack_winner_count; i = next_fitting(i + 1, product, device)) {
        const struct winner *winner = &pack_winners[i];
        const double away = distance(product, winner);
        if (winner->card < 0 || winner->division.resident == 0)
            *is_known = 0;
        if (found.winner == NULL || away < found.distance ||
            (away == found.distance && comes_before(winner, found.winner))) {
            found.winner = winner;
            found.distance = away;
            found.launch = winner->launch;
        }
    }
    return found;
}

/* The winner with the least predicted time, penalised by its distance, and its launch. */
static struct match least(const struct product *product, const char *device)
{
    struct match found = {.winner = NULL};
    double least_us = INFINITY;
    for (int i = next_fitting(0, product, device); i < pack_winner_count; i = next_fitting(i + 1, product, device)) {
        const struct winner *winner = &pack_winners[i];
        const struct work work = work_of(product, winner, 0);
        struct launch launch;
        double away;
        const double us = carried_over_us(winner, &work, best_launch(winner, &work, &launch), &away);
        const double doubted = us * exp(DOUBT * away);
        if (found.winner == NULL || doubted < least_us || (doubted == least_us && comes_before(winner, found.winner))) {
            least_us = doubted;
            found.winner = winner;
            found.launch = launch;
            found.distance = distance(product, winner);
            found.expected_us = us;
        }
    }
    return found;
}

/* The vendor's predicted time, from its times beside the winners that fit; 0: unknown. */
static double vendors(const struct product *product, const char *device, const struct work *work)
{
    struct average average = {0, 0, INFINITY};
    const double plain_us = plain_vendor_us(work);
    const struct work apart = vectors_apart(*work);
    for (int i = next_fitting(0, product, device); i < pack_winner_count; i = next_fitting(i + 1, product, device)) {
        const struct winner *winner = &pack_winners[i];
        for (int at = 0; at < winner->vendor_point_count; ++at)
            add_point(&average, &pack_points[winner->first_vendor_point + at], &apart, plain_us);
    }
    return average.weights > 0 ? vendor_us(&average, work) : 0;
}

/* The winner for the product as it is; none where no winner fits. */
static struct match choose_as_is(const struct product *product, const char *device)
{
    struct match found = {.winner = NULL};
    const char *of = device_for(product, device);
    int is_known;
    if (of == NULL)
        return found;
    const struct match near = nearest(product, of, &is_known);
    const struct winner *winner = near.winner;
    found = near;
    if (near.distance == 0) {
        found.expected_us = winner->median_us;
        found.vendor_us = winner->vendor_us;
    } else if (is_known) {
        found = least(product, of);
        const struct work work = work_of(product, winner, 1);
        found.vendor_us = vendors(product, of, &work);
    }
    found.of_other_device = strcmp(of, device) != 0;
    return found;
}

struct match choose(const struct product *product, const char *device)
{
    const struct match found = choose_as_is(product, device);
    const int is_wide = product->m < product->n; /* kernels are made for a tall C */
    if (found.winner != NULL && !(is_wide && found.distance > 0 && found.expected_us > 0))
        return found;
    const struct product across = transposed_product(product);
    struct match other = choose_as_is(&across, device);
    other.swapped = 1;
    other.m = across.m;
    other.n = across.n;
    other.k = across.k;
    if (found.winner == NULL)
        return other;
    const int is_faster = other.winner != NULL && other.expected_us > 0 && other.expected_us < found.expected_us;
    return is_faster && (!other.of_other_device || found.of_other_device) ? other : found;
}

/* Times as long as the kernel's expected time, which the vendor's has to exceed. */
static double doubt(const struct match *match)
{
    return match->distance > 0 ? NO_GAIN * exp(DOUBT_BEYOND * fmax(match->distance - KNOWN_WITHIN, 0.0)) : 1.0;
}

int loses(const struct match *match)
{
    const struct winner *winner = match->winner;
    if (match->expected_us <= 0)
        return winner->vendor_routine != NULL && winner->vendor_us < winner->median_us;
    return match->vendor_us > 0 && match->vendor_us < doubt(match) * match->expected_us;
}

/* Adds what printf would print to a text, as far as there is room. */
#define ADD(text, bytes, ...)                                                                                        \
    do {                                                                                                             \
        const size_t has = strlen(text);                                                                             \
        snprintf((text) + has, (bytes) - has, __VA_ARGS__);                                                          \
    } while (0)

void describe_match(const struct match *match, const char *device, char *text, size_t bytes)
{
    const struct winner *w = match->winner;
    const long long m = w->m, n = w->n, k = w->k;
    text[0] = '\0';
    ADD(text, bytes, "%s", w->config);
    if (match->launch.splits > 1)
        ADD(text, bytes, " with %d %s", match->launch.splits, match->launch.persistent ? "blocks" : "splits");
    if (match->swapped)
        ADD(text, bytes, ", by op %s as the transposed product %lldx%lldx%lld", w->op, (long long)match->m,
            (long long)match->n, (long long)match->k);
    if (match->of_other_device)
        ADD(text, bytes, ", tuned on %s: no winner of %s fits, tune there for its own", w->device, device);
    if (match->distance == 0)
        ADD(text, bytes, ": tuned for this shape; with the L2 %s %.1f us measured", w->cache, match->expected_us);
    else if (match->expected_us > 0)
        ADD(text, bytes, ": measured at %lldx%lldx%lld; with the L2 %s %.1f us predicted, from %.1f us there", m, n, k,
            w->cache, match->expected_us, w->median_us);
    else
        ADD(text, bytes, ": tuned for %lldx%lldx%lld, at distance %.1f", m, n, k, match->distance);
    if (match->distance != 0 && match->expected_us > 0 && w->point_count > 1)
        ADD(text, bytes, " and times at %d other shape%s", w->point_count - 1, w->point_count > 2 ? "s" : "");
    if (match->vendor_us > 0)
        ADD(text, bytes, ", %s %.1f us", match->distance == 0 ? w->vendor_routine : "cuBLAS's gemm",
            match->vendor_us);
}

/* Whether the first winner of this type and op is at i. */
static int is_first_of_op(int i)
{
    for (int j = 0; j < i; ++j)
        if (pack_winners[j].type == pack_winners[i].type && strcmp(pack_winners[j].op, pack_winners[i].op) == 0)
            return 0;
    return 1;
}

void describe_lack(const struct call *call, char *text, size_t bytes)
{
    static const char *const names[] = {"f32", "f64", "c64", "c128", "bf16", "f16"};
    const int is_complex = call->type == TSM2_C64 || call->type == TSM2_C128;
    const char letters[] = {'n', 't', is_complex ? 'c' : 't'};
    const char op[] = {letters[call->transa], letters[call->transb], '\0'};
    int found = 0;
    text[0] = '\0';
    ADD(text, bytes, "no %s kernel for op %s is in this library, only for ", names[call->type], op);
    for (int i = 0; i < pack_winner_count; ++i)
        if (pack_winners[i].type == (int)call->type && is_first_of_op(i))
            ADD(text, bytes, "%s%s", found++ ? ", " : "", pack_winners[i].op);
    ADD(text, bytes, "%s: tune with --dtype %s --op %s and export again", found ? "" : "other types", names[call->type],
        op);
}
