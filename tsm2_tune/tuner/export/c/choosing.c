/* The choice of a winner for a product: as in the Python module. */

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "product.h"

/* What makes one winner come before another: the first difference. */
struct rank {
    int of_other_device;
    double distance;
    int is_no_gram;
    double median_us;
};

static int fits(const struct winner *winner, const struct product *product)
{
    for (int x = 0; x < 3; ++x)
        if (product->matrices[x].ld[winner->orders[x]] == 0)
            return 0;
    return winner->type == product->type && winner->conjugates[0] == product->conjugates[0] &&
           winner->conjugates[1] == product->conjugates[1] && (product->is_gram || !winner->is_gram);
}

static double distance(const struct product *product, const struct winner *winner)
{
    const double x = log((double)product->m / (double)winner->m);
    const double y = log((double)product->n / (double)winner->n);
    const double z = log((double)product->k / (double)winner->k);
    return (double)sqrtl((long double)x * x + (long double)y * y + (long double)z * z);
}

static int comes_before(struct rank a, struct rank b)
{
    if (a.of_other_device != b.of_other_device)
        return a.of_other_device < b.of_other_device;
    if (a.distance != b.distance)
        return a.distance < b.distance;
    if (a.is_no_gram != b.is_no_gram)
        return a.is_no_gram < b.is_no_gram;
    return a.median_us < b.median_us;
}

/* The first winner by device, shape, half the products, time. */
static struct match nearest(const struct product *product, const char *device)
{
    struct match found = {NULL, 0, 0, 0};
    struct rank first = {0, 0, 0, 0};
    for (int i = 0; i < pack_winner_count; ++i) {
        const struct winner *winner = &pack_winners[i];
        if (!fits(winner, product))
            continue;
        const struct rank rank = {strcmp(device, winner->device) != 0, distance(product, winner), !winner->is_gram,
                                  winner->median_us};
        if (found.winner == NULL || comes_before(rank, first)) {
            first = rank;
            found.winner = winner;
        }
    }
    found.distance = first.distance;
    found.of_other_device = first.of_other_device;
    return found;
}

struct match choose(const struct product *product, const char *device)
{
    struct match found = nearest(product, device);
    if (found.winner != NULL)
        return found;
    const struct product across = transposed_product(product);
    found = nearest(&across, device);
    found.swapped = 1;
    return found;
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
    ADD(text, bytes, "%s, ", w->config);
    if (match->distance == 0)
        ADD(text, bytes, "exact");
    else
        ADD(text, bytes, "nearest %lldx%lldx%lld at distance %.1f", m, n, k, match->distance);
    if (match->swapped)
        ADD(text, bytes, ", by op %s as the transposed product", w->op);
    if (match->of_other_device)
        ADD(text, bytes, ", tuned on %s: no winner of %s fits, tune there for its own", w->device, device);
    if (match->distance == 0) {
        ADD(text, bytes, ": %.1f us", w->median_us);
        if (w->vendor_routine != NULL)
            ADD(text, bytes, ", %s %.1f us", w->vendor_routine, w->vendor_us);
    }
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
