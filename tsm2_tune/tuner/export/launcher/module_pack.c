/* The module's pack. */

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
