/* What a call says: its tensors as they describe themselves. */

#include "launcher.h"

/* Whether the tensor's method or attribute of this name is what it says; -1 where it is neither True nor False. */
static int answer(PyObject *said)
{
    const int is_true = said == Py_True ? 1 : said == Py_False ? 0 : -1;
    Py_XDECREF(said);
    return is_true;
}

/* The tensor's address and part of the key; false where a closer look is needed. */
static bool read_tensor(struct launcher *self, PyObject *tensor, int which, struct call *call)
{
    struct dl_tensor told;
    PyObject *kind = (PyObject *)Py_TYPE(tensor);
    if (kind != PyTuple_GetItem(self->kinds, 0) && kind != PyTuple_GetItem(self->kinds, 1))
        return false;
    if (answer(PyObject_GetAttr(tensor, self->requires_grad)) != 0 ||
        answer(PyObject_CallMethodObjArgs(tensor, self->is_neg, NULL)) != 0 ||
        self->exchange->describe(tensor, &told) != 0 || told.dimensions < 1 || told.dimensions > 2)
        return false;
    struct key *key = &call->key;
    if (which == A) {
        key->device = told.device;
        key->type = told.type;
    } else if (memcmp(&key->device, &told.device, sizeof told.device) != 0 ||
               memcmp(&key->type, &told.type, sizeof told.type) != 0) {
        return false;
    }
    struct matrix *matrix = &key->matrices[which];
    matrix->dimensions = told.dimensions;
    for (int along = 0; along < told.dimensions; ++along) {
        matrix->extents[along] = told.extents[along];
        matrix->strides[along] = told.strides[along];
    }
    if (told.type.code == DL_COMPLEX) {
        matrix->is_conjugate = answer(PyObject_CallMethodObjArgs(tensor, self->is_conj, NULL));
        if (matrix->is_conjugate < 0 || (which == OUT && matrix->is_conjugate))
            return false;
    }
    call->at[which] = (uint64_t)(uintptr_t)told.data + told.byte_offset;
    return true;
}

bool read_call(struct launcher *self, PyObject *const *arguments, struct call *call)
{
    memset(call, 0, sizeof *call);
    call->key.has_out = arguments[ARRAY_OUT] != Py_None;
    for (int which = A; which < (call->key.has_out ? MATRICES : OUT); ++which)
        if (!read_tensor(self, arguments[which], which, call))
            return false;
    call->key.is_same = call->at[A] == call->at[B];
    return true;
}
