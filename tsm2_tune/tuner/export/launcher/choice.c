/* The module's pack, and the core's choice for Python. */

#include "launcher.h"

static struct core_pack pack; /* its header is NULL until it is open */
static PyObject *pack_bytes;
static void *pack_memory;

const struct core_pack *opened_pack(void) { return pack.header == NULL ? NULL : &pack; }

PyObject *open_pack(PyObject *module, PyObject *bytes)
{
    char *data;
    Py_ssize_t size;
    (void)module;
    if (pack.header != NULL) {
        PyErr_SetString(PyExc_ValueError, "the pack is open already");
        return NULL;
    }
    if (PyBytes_AsStringAndSize(bytes, &data, &size) < 0)
        return NULL;
    void *memory = PyMem_Malloc(core_memory_bytes(data, (size_t)size));
    if (memory == NULL)
        return PyErr_NoMemory();
    const char *fault = core_open(data, (size_t)size, memory, &pack);
    if (fault != NULL) {
        PyMem_Free(memory);
        PyErr_SetString(PyExc_ValueError, fault);
        return NULL;
    }
    pack_bytes = Py_NewRef(bytes);
    pack_memory = memory;
    Py_RETURN_NONE;
}

PyObject *choose_kernel(PyObject *module, PyObject *arguments)
{
    (void)module;
    struct core_product product;
    const char *device;
    int type, makes_c, is_gram, conjugates[2];
    long long m, n, k, ld[CORE_MATRICES][CORE_ORDERS];
    if (!PyArg_ParseTuple(arguments, "i(LLL)(LL)(LL)(LL)p(pp)pz", &type, &m, &n, &k, &ld[0][0], &ld[0][1], &ld[1][0],
                          &ld[1][1], &ld[2][0], &ld[2][1], &makes_c, &conjugates[0], &conjugates[1], &is_gram, &device))
        return NULL;
    if (opened_pack() == NULL)
        Py_RETURN_NONE;
    memset(&product, 0, sizeof product);
    product.m = m, product.n = n, product.k = k;
    product.batch_count = 1;
    product.type = type;
    product.conjugates[0] = conjugates[0], product.conjugates[1] = conjugates[1];
    product.is_gram = is_gram;
    product.makes_c = makes_c;
    for (int x = 0; x < CORE_MATRICES; ++x)
        for (int order = 0; order < CORE_ORDERS; ++order)
            product.ld[x][order] = ld[x][order];
    const struct core_choice choice =
        core_choose(&pack, &product, device == NULL ? CORE_HOST : core_device_index(&pack, device));
    if (choice.reason == CORE_NO_KERNEL)
        Py_RETURN_NONE;
    return Py_BuildValue("(iiidiidd)", (int)choice.kernel, (int)choice.rows_per_block, (int)choice.splits,
                         choice.distance, (int)choice.is_of_other_device, (int)choice.is_transposed, choice.us,
                         choice.vendor_us);
}
