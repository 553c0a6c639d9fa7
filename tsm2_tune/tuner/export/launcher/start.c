/* The start of a product. */

#include "launcher.h"

enum way { STARTED, RAISED, LOOK_CLOSER };

static bool overlaps(const struct call *call)
{
    const uint64_t *at = call->at, *spans = call->entry->spans, end = at[OUT] + spans[OUT];
    return (at[A] < end && at[OUT] < at[A] + spans[A]) || (at[B] < end && at[OUT] < at[B] + spans[B]);
}

/* Puts a factor into a slot, None as it is there; false for what needs a closer look. */
static bool put_factor(const struct entry *entry, unsigned char *place, PyObject *factor)
{
    double real, imaginary = 0;
    const bool is_complex = entry->scalar == 'F' || entry->scalar == 'D';
    if (factor == Py_None)
        return true;
    if (PyFloat_CheckExact(factor) || PyLong_CheckExact(factor)) {
        real = PyFloat_AsDouble(factor);
        if (real == -1 && PyErr_Occurred())
            return false;
    } else if (is_complex && PyComplex_CheckExact(factor)) {
        real = PyComplex_RealAsDouble(factor);
        imaginary = PyComplex_ImagAsDouble(factor);
    } else {
        return false;
    }
    if (!(fabs(real) <= entry->largest && fabs(imaginary) <= entry->largest))
        return false;
    if (entry->scalar == 'f' || entry->scalar == 'F') {
        const float parts[2] = {(float)real, (float)imaginary};
        memcpy(place, parts, is_complex ? sizeof parts : sizeof *parts);
    } else {
        const double parts[2] = {real, imaginary};
        memcpy(place, parts, is_complex ? sizeof parts : sizeof *parts);
    }
    return true;
}

/* A new `out`, a new reference, on the current device: else a closer look is needed. NULL, and what was raised. */
static PyObject *made_out(struct launcher *self, struct call *call)
{
    PyObject *current = PyObject_CallFunctionObjArgs(self->current_device, NULL);
    if (current == NULL)
        return NULL;
    const long device = PyLong_AsLong(current);
    Py_DECREF(current);
    if (device != call->key.device.number)
        return NULL;
    PyObject *out = PyObject_Call(self->empty_strided, call->entry->shape_of_out, call->entry->type_of_out);
    struct dl_tensor told;
    if (out == NULL)
        return NULL;
    if (self->exchange->describe(out, &told) != 0) {
        Py_DECREF(out);
        return NULL;
    }
    call->at[OUT] = (uint64_t)(uintptr_t)told.data + told.byte_offset;
    return out;
}

/* The current stream of the call's device in *stream; false, and an exception, where it is not told. */
static bool current_stream(struct launcher *self, const struct call *call, uint64_t *stream)
{
    PyObject *device = PyLong_FromLong(call->key.device.number), *told = NULL;
    if (device != NULL)
        told = PyObject_CallFunctionObjArgs(self->stream_of, device, NULL);
    *stream = told == NULL ? 0 : PyLong_AsUnsignedLongLong(told);
    Py_XDECREF(device);
    Py_XDECREF(told);
    return !PyErr_Occurred();
}

/* Starts what the slot holds; the plan does where there is a workspace, and where the driver refuses: it then makes
   the plan's context current. */
static enum way launch(const struct call *call, unsigned char *slot, uint64_t stream, PyObject *const *arguments)
{
    const struct entry *entry = call->entry;
    if (!entry->has_workspace) {
        void *parameters[MOST_PARAMETERS];
        for (Py_ssize_t number = 0; number < entry->parameter_count; ++number)
            parameters[number] = slot + entry->parameters[number];
        for (int which = A; which < MATRICES; ++which)
            memcpy(slot + entry->at_matrices[which], &call->at[which], sizeof call->at[which]);
        memcpy(slot + entry->at_stream, &stream, sizeof stream);
        int status;
        Py_BEGIN_ALLOW_THREADS /* it may wait for kernels, and those for what other threads do */
        status = entry->launch(slot, entry->kernel, parameters, NULL);
        Py_END_ALLOW_THREADS
        if (status == 0)
            return STARTED;
    }
    PyObject *started = PyObject_CallFunction(entry->start, "KKKOOKO", call->at[A], call->at[B], call->at[OUT],
                                              arguments[ALPHA], arguments[BETA], stream, arguments[ARRAY_A]);
    Py_XDECREF(started);
    return started == NULL ? RAISED : STARTED;
}

/* The call of an entry, which is held. *out is a new reference where it was started. */
static enum way start_entry(struct launcher *self, struct call *call, PyObject *const *arguments, PyObject **out)
{
    _Alignas(16) unsigned char slot[MOST_SLOT_BYTES];
    const struct entry *entry = call->entry;
    uint64_t stream;
    memcpy(slot, entry->slot, entry->slot_bytes);
    for (int which = 0; which < 2; ++which)
        if (!put_factor(entry, slot + entry->at_factors[which], arguments[ALPHA + which]))
            return LOOK_CLOSER;
    if (call->key.has_out ? overlaps(call) : arguments[BETA] != Py_None)
        return LOOK_CLOSER;
    if (!current_stream(self, call, &stream))
        return LOOK_CLOSER;
    *out = call->key.has_out ? Py_NewRef(arguments[ARRAY_OUT]) : made_out(self, call);
    if (*out == NULL)
        return PyErr_Occurred() ? RAISED : LOOK_CLOSER;
    const enum way way = launch(call, slot, stream, arguments);
    if (way != STARTED)
        Py_CLEAR(*out);
    return way;
}

PyObject *start(PyObject *object, PyObject *const *arguments, Py_ssize_t count)
{
    struct launcher *self = (struct launcher *)object;
    struct call call;
    PyObject *out = NULL;
    if (count != ARGUMENTS) {
        PyErr_SetString(PyExc_TypeError, "start: expected a, b, out, alpha, beta, asked and stream");
        return NULL;
    }
    enum way way = LOOK_CLOSER;
    if (arguments[STREAM] == Py_None && is_plain(arguments[ASKED]) && read_call(self, arguments, &call)) {
        call.entry = entry_of(self, &call, arguments[ASKED]);
        if (call.entry != NULL) {
            ++call.entry->references; /* other threads may clear the table while this one is in Python */
            way = start_entry(self, &call, arguments, &out);
            drop(call.entry);
        }
    }
    if (way == RAISED)
        return NULL;
    if (way == STARTED)
        return out;
    PyErr_Clear();
    return PyObject_CallFunctionObjArgs(self->plain, arguments[0], arguments[1], arguments[2], arguments[3],
                                        arguments[4], arguments[5], arguments[6], NULL);
}
