/* The C library's choice of a winner, for the launcher and for Python. */

#include "match.h"

#include <limits.h>
#include <string.h>

#include "launch.h"
#include "product.h"

static void set_matrices(struct product *product, int64_t ld[3][ORDERS])
{
    const int64_t extents[3][2] = {{product->m, product->k}, {product->k, product->n}, {product->m, product->n}};
    for (int x = 0; x < 3; ++x) {
        struct matrix *matrix = &product->matrices[x];
        matrix->rows = extents[x][0];
        matrix->columns = extents[x][1];
        memcpy(matrix->ld, ld[x], sizeof matrix->ld);
    }
}

static PyObject *matched(const struct match *match)
{
    return Py_BuildValue("(niidiidd)", (Py_ssize_t)(match->winner - pack_winners), match->launch.rows_per_block,
                         match->launch.splits, match->distance, match->of_other_device, match->swapped,
                         match->expected_us, match->vendor_us);
}

PyObject *choose_winner(PyObject *module, PyObject *arguments)
{
    (void)module;
    struct product product = {0};
    const char *device;
    long long m, n, k, given[3][ORDERS];
    if (!PyArg_ParseTuple(arguments, "i(LLL)(LL)(LL)(LL)(pp)ps", &product.type, &m, &n, &k, &given[0][0], &given[0][1],
                          &given[1][0], &given[1][1], &given[2][0], &given[2][1], &product.conjugates[0],
                          &product.conjugates[1], &product.is_gram, &device))
        return NULL;
    int64_t ld[3][ORDERS];
    for (int x = 0; x < 3; ++x)
        for (int order = 0; order < ORDERS; ++order)
            ld[x][order] = given[x][order];
    product.m = m;
    product.n = n;
    product.k = k;
    set_matrices(&product, ld);
    const struct match match = choose(&product, device);
    return match.winner == NULL ? Py_NewRef(Py_None) : matched(&match);
}

int winners_here(void) { return pack_winner_count; }

int64_t bytes_of_element(int type) { return element_bytes((tsm2_type)type); }

/* Whether the device has winners for these operands with C in this order, if it has any for the operands. */
static bool have_order(const struct product *product, int order, const char *device)
{
    bool is_any = false;
    for (int i = 0; i < pack_winner_count; ++i) {
        const struct winner *winner = &pack_winners[i];
        if (!fits_operands(winner, product))
            continue;
        is_any = true;
        if (winner->orders[2] == order && strcmp(winner->device, device) == 0)
            return true;
    }
    return !is_any;
}

/* Give the product a column-major C, if there are winners for that; a vector has both orders. */
static bool make_out(struct product *product, const char *device)
{
    struct matrix *out = &product->matrices[2];
    const bool is_vector = product->m == 1 || product->n == 1;
    out->ld[COLUMN_MAJOR] = product->m;
    out->ld[ROW_MAJOR] = is_vector ? product->n : 0;
    if (is_vector)
        return true;
    const struct product across = transposed_product(product);
    return !product->is_gram && have_order(product, COLUMN_MAJOR, device) && have_order(&across, ROW_MAJOR, device);
}

bool decide(const struct request *request, const char *device, struct decision *decision)
{
    struct product product = {.type = request->type, .m = request->m, .n = request->n, .k = request->k};
    int64_t ld[3][ORDERS];
    memcpy(ld, request->ld, sizeof ld);
    product.is_gram = request->is_gram;
    set_matrices(&product, ld);
    if (!request->has_out && !make_out(&product, device))
        return false;
    const struct match match = choose(&product, device);
    if (match.winner == NULL)
        return false;
    const struct product oriented = match.swapped ? transposed_product(&product) : product;
    const struct launch *launch = &match.launch;
    const uint64_t x = launch_blocks_x(launch, (uint64_t)oriented.m, (uint64_t)oriented.n), y = launch_blocks_y(launch);
    if (x > INT_MAX || y > INT_MAX)
        return false;
    const struct decision made = {
        .winner = (int)(match.winner - pack_winners),
        .width = index_width(&oriented, match.winner),
        .is_swapped = match.swapped,
        .is_row_major = (match.winner->orders[2] == ROW_MAJOR) != match.swapped,
        .is_vendors = loses(&match),
        .extents = {oriented.m, oriented.n, oriented.k},
        .blocks = {(uint32_t)x, (uint32_t)y},
        .threads = (uint32_t)launch->threads,
        .smem_bytes = (uint32_t)launch->smem_bytes,
        .workspace_bytes = {partials_bytes(launch, &oriented), counters_bytes(launch, &oriented)},
    };
    *decision = made;
    for (int matrix = 0; matrix < 3; ++matrix)
        decision->ld[matrix] = oriented.matrices[matrix].ld[match.winner->orders[matrix]];
    return true;
}
