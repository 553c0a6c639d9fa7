/* Read a call's arrays: their addresses, types, shapes and strides. */

#include "launcher.h"

/* An attribute as an integer; -1 and an exception if it is none. */
static long long integer(PyObject *object, PyObject *name)
{
    PyObject *found = PyObject_GetAttr(object, name);
    const long long value = found == NULL ? -1 : PyLong_AsLongLong(found);
    Py_XDECREF(found);
    return value;
}

/* The one or two integers of a tuple, of which there are as many as *count, unless that is 0; false where it is no such
   tuple. */
static bool integers(PyObject *tuple, int64_t *values, int32_t *count)
{
    const bool is_tuple = tuple != NULL && PyTuple_CheckExact(tuple);
    const Py_ssize_t size = is_tuple ? PyTuple_Size(tuple) : 0;
    const bool fits = (size == 1 || size == 2) && (*count == 0 || *count == size);
    for (Py_ssize_t at = 0; fits && at < size; ++at)
        values[at] = PyLong_AsLongLong(PyTuple_GetItem(tuple, at));
    *count = (int32_t)size;
    Py_XDECREF(tuple);
    return fits && !PyErr_Occurred();
}

/* Read a CuPy array by its attributes. The strides of a row-major array without padding stay 0. */
static bool read_attributes(struct launcher *self, PyObject *array, struct array_info *info)
{
    PyObject **names = self->names;
    if (!integers(PyObject_GetAttr(array, names[SHAPE]), info->matrix.extents, &info->matrix.dimensions))
        return false;
    PyObject *is_contiguous = PyObject_GetAttr(array, names[CONTIGUOUS]), *dtype = PyObject_GetAttr(array, names[DTYPE]);
    const bool has_strides = is_contiguous == Py_False, is_known = has_strides || is_contiguous == Py_True;
    info->type = (uint64_t)(uintptr_t)dtype; /* the entry keeps it alive */
    Py_XDECREF(is_contiguous);
    Py_XDECREF(dtype);
    if (!is_known || dtype == NULL ||
        (has_strides && !integers(PyObject_GetAttr(array, names[STRIDES]), info->matrix.strides, &info->matrix.dimensions)))
        return false;
    if (has_strides && info->matrix.strides[0] == 0 && info->matrix.strides[1] == 0)
        return false; /* a stride of 0 repeats an element: no matrix for a kernel */
    PyObject *data = PyObject_GetAttr(array, names[DATA]);
    if (data == NULL)
        return false;
    info->at = (uint64_t)integer(data, names[PTR]);
    info->device = (int32_t)integer(data, names[DEVICE_ID]);
    Py_DECREF(data);
    return !PyErr_Occurred();
}

/* Read a tensor by DLPack. */
static bool read_tensor(struct launcher *self, PyObject *tensor, struct array_info *info)
{
    struct dl_tensor described;
    if (self->exchange->describe(tensor, &described) != 0 || described.dimensions < 1 || described.dimensions > 2)
        return false;
    info->at = (uint64_t)(uintptr_t)described.data + described.byte_offset;
    info->device_type = described.device.type;
    info->device = described.device.number;
    memcpy(&info->type, &described.type, sizeof described.type);
    info->matrix.dimensions = described.dimensions;
    for (int along = 0; along < described.dimensions; ++along) {
        info->matrix.extents[along] = described.extents[along];
        info->matrix.strides[along] = described.strides[along];
    }
    info->is_complex = described.type.code == DL_COMPLEX;
    return true;
}

bool read_array(struct launcher *self, PyObject *array, struct array_info *info)
{
    memset(info, 0, sizeof *info);
    return self->exchange == NULL ? read_attributes(self, array, info) : read_tensor(self, array, info);
}

/* Whether the tensor's method or attribute of this name gives True; -1 if it gives neither True nor False. */
static int answer(PyObject *said)
{
    const int is_true = said == Py_True ? 1 : said == Py_False ? 0 : -1;
    Py_XDECREF(said);
    return is_true;
}

/* Whether the tensor is no more than its memory, except for the conjugate bit, which is stored in *is_conjugate. */
static bool is_its_memory(struct launcher *self, PyObject *tensor, bool is_complex, int32_t *is_conjugate)
{
    *is_conjugate = is_complex ? answer(PyObject_CallMethodObjArgs(tensor, self->names[IS_CONJ], NULL)) : 0;
    return *is_conjugate >= 0 && answer(PyObject_GetAttr(tensor, self->names[REQUIRES_GRAD])) == 0 &&
           answer(PyObject_CallMethodObjArgs(tensor, self->names[IS_NEG], NULL)) == 0;
}

/* Read the array's address and its part of the key. False if Python has to check it. */
static bool read_operand(struct launcher *self, PyObject *array, int which, struct call *call)
{
    struct array_info info;
    struct key *key = &call->key;
    PyObject *kind = (PyObject *)Py_TYPE(array);
    if ((kind != PyTuple_GetItem(self->kinds, 0) && kind != PyTuple_GetItem(self->kinds, 1)) ||
        !read_array(self, array, &info))
        return false;
    if (self->exchange != NULL && !is_its_memory(self, array, info.is_complex, &info.matrix.is_conjugate))
        return false;
    if (which == A) {
        key->device_type = info.device_type;
        key->device = info.device;
        key->type = info.type;
    }
    key->matrices[which] = info.matrix;
    call->at[which] = info.at;
    return info.at != 0 && key->device_type == info.device_type && key->device == info.device && key->type == info.type &&
           (which != OUT || !info.matrix.is_conjugate);
}

bool read_call(struct launcher *self, PyObject *const *arguments, struct call *call)
{
    memset(call, 0, sizeof *call);
    call->key.has_out = arguments[ARRAY_OUT] != Py_None;
    for (int which = A; which < (call->key.has_out ? MATRICES : OUT); ++which)
        if (!read_operand(self, arguments[which], which, call))
            return false;
    call->key.is_same = call->at[A] == call->at[B];
    return true;
}
