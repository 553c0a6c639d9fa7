/* The choice of a winner, as the C library makes it, for Python. */

#include "choice.h"
#include "product.h"

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
    struct matrix *matrices = product.matrices;
    const char *device;
    long long m, n, k, ld[3][ORDERS];
    if (!PyArg_ParseTuple(arguments, "i(LLL)(LL)(LL)(LL)(pp)ps", &product.type, &m, &n, &k, &ld[0][0], &ld[0][1],
                          &ld[1][0], &ld[1][1], &ld[2][0], &ld[2][1], &product.conjugates[0], &product.conjugates[1],
                          &product.is_gram, &device))
        return NULL;
    product.m = m;
    product.n = n;
    product.k = k;
    const int64_t extents[3][2] = {{m, k}, {k, n}, {m, n}};
    for (int x = 0; x < 3; ++x) {
        matrices[x].rows = extents[x][0];
        matrices[x].columns = extents[x][1];
        matrices[x].ld[COLUMN_MAJOR] = ld[x][0];
        matrices[x].ld[ROW_MAJOR] = ld[x][1];
    }
    const struct match match = choose(&product, device);
    return match.winner == NULL ? Py_NewRef(Py_None) : matched(&match);
}

int winners_here(void) { return pack_winner_count; }
