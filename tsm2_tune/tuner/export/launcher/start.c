/* Start products. */

#include "launcher.h"

enum way { STARTED, RAISED, LOOK_CLOSER };

/* Whether an array is not aligned to its elements. A new `out` always is. */
static bool is_misaligned(const struct call *call)
{
    return ((call->at[A] | call->at[B] | call->at[OUT]) & call->entry->alignment_mask) != 0;
}

static bool overlaps(const struct call *call)
{
    const uint64_t *at = call->at, *spans = call->entry->spans, end = at[OUT] + spans[OUT];
    return (at[A] < end && at[OUT] < at[A] + spans[A]) || (at[B] < end && at[OUT] < at[B] + spans[B]);
}

/* Write a factor into a slot; None leaves it. False if Python has to check it. */
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

/* Whether the call's device is current. False may come with an exception. */
static bool is_on_current_device(struct launcher *self, const struct call *call)
{
    PyObject *current = PyObject_CallFunctionObjArgs(self->current_device, NULL);
    const long device = current == NULL ? -1 : PyLong_AsLong(current);
    Py_XDECREF(current);
    return device == call->key.device && !PyErr_Occurred();
}

/* A new reference to a new `out` on the current device; NULL and an exception if that fails. */
static PyObject *made_out(struct launcher *self, struct call *call)
{
    if (!is_on_current_device(self, call))
        return NULL;
    PyObject *out = PyObject_Call(self->make_out, call->entry->shape_of_out, call->entry->type_of_out);
    struct array_info found = {0};
    if (out != NULL && !read_array(self, out, &found))
        Py_CLEAR(out);
    call->at[OUT] = found.at;
    return out;
}

/* Store the current stream of the call's device in *stream. False, with an exception, if that fails. */
static bool current_stream(struct launcher *self, const struct call *call, uint64_t *stream)
{
    PyObject *device = PyLong_FromLong(call->key.device), *found = NULL;
    if (device != NULL)
        found = PyObject_CallFunctionObjArgs(self->stream_of, device, NULL);
    if (found != NULL && !PyLong_Check(found)) { /* CuPy's own */
        PyObject *stream = found;
        found = PyObject_GetAttr(stream, self->names[PTR]);
        Py_DECREF(stream);
    }
    *stream = found == NULL ? 0 : PyLong_AsUnsignedLongLong(found);
    Py_XDECREF(device);
    Py_XDECREF(found);
    return !PyErr_Occurred();
}

/* Read two numbers from a tuple attribute. False if it is no such tuple. */
static bool two_numbers(PyObject *object, PyObject *name, uint64_t numbers[2])
{
    PyObject *pair = PyObject_GetAttr(object, name);
    const bool is_pair = pair != NULL && PyTuple_CheckExact(pair) && PyTuple_Size(pair) == 2;
    for (int which = 0; is_pair && which < 2; ++which)
        numbers[which] = PyLong_AsUnsignedLongLong(PyTuple_GetItem(pair, which));
    Py_XDECREF(pair);
    return is_pair && !PyErr_Occurred();
}

/* Puts the legacy stream's workspace into the slot: a new reference, which keeps its memory until the launch. NULL,
   and no exception, where there is none that is large enough, or whose memory somebody may free by hand. */
static PyObject *put_workspace(struct launcher *self, const struct entry *entry, unsigned char *slot)
{
    uint64_t sizes[WORKSPACE_PARTS], at[WORKSPACE_PARTS];
    PyObject *found = Py_XNewRef(PyDict_GetItemWithError(self->workspaces, entry->workspace));
    PyObject *owners = found == NULL ? NULL : PyObject_GetAttr(found, self->names[OWNERS]);
    const bool is_owned = owners != NULL && PyTuple_CheckExact(owners) && PyTuple_Size(owners) == WORKSPACE_PARTS;
    bool is_enough =
        is_owned && two_numbers(found, self->names[SIZES_BYTES], sizes) && two_numbers(found, self->names[ADDRESSES], at);
    for (int part = 0; is_enough && part < WORKSPACE_PARTS; ++part) {
        is_enough = sizes[part] >= entry->needed_bytes[part];
        memcpy(slot + entry->at_workspace + part * ARGUMENT_BYTES, &at[part], sizeof at[part]);
    }
    PyErr_Clear();
    Py_XDECREF(owners);
    if (!is_enough)
        Py_CLEAR(found);
    return found;
}

/* Starts what the slot holds, unless it lacks a workspace; the plan does where it does, or where the driver refuses: it
   then makes the plan's context current. */
static enum way launch(const struct call *call, unsigned char *slot, bool is_whole, uint64_t stream,
                       PyObject *const *arguments)
{
    const struct entry *entry = call->entry;
    if (is_whole) {
        void *parameters[MOST_PARAMETERS];
        for (Py_ssize_t number = 0; number < entry->parameter_count; ++number)
            parameters[number] = slot + entry->parameters[number];
        for (int which = A; which < MATRICES; ++which)
            memcpy(slot + entry->at_matrices[which], &call->at[which], sizeof call->at[which]);
        memcpy(slot + entry->at_stream, &stream, sizeof stream);
        int status;
        Py_BEGIN_ALLOW_THREADS /* the launch may wait for kernels, and those for other threads */
        status = entry->launch(slot, entry->kernel, parameters, NULL);
        Py_END_ALLOW_THREADS
        if (status == 0)
            return STARTED;
    }
    if (entry->start == NULL)
        return LOOK_CLOSER;
    PyObject *started = PyObject_CallFunction(entry->start, "(KKKK)OOO", stream, call->at[A], call->at[B],
                                              call->at[OUT], arguments[ALPHA], arguments[BETA], arguments[ARRAY_A]);
    Py_XDECREF(started);
    return started == NULL ? RAISED : STARTED;
}

/* Start the call by its entry, of which the caller has a reference. *out is a new reference if it was started. */
static enum way start_entry(struct launcher *self, struct call *call, PyObject *const *arguments, PyObject **out)
{
    _Alignas(16) unsigned char slot[MOST_SLOT_BYTES];
    const struct entry *entry = call->entry;
    uint64_t stream;
    memcpy(slot, entry->slot, entry->slot_bytes);
    for (int which = 0; which < 2; ++which)
        if (!put_factor(entry, slot + entry->at_factors[which], arguments[ALPHA + which]))
            return LOOK_CLOSER;
    if (is_misaligned(call) || (call->key.has_out ? overlaps(call) : arguments[BETA] != Py_None))
        return LOOK_CLOSER;
    if (!current_stream(self, call, &stream))
        return LOOK_CLOSER;
    const bool needs_none = entry->workspace == Py_None;
    PyObject *workspace = needs_none || stream > LEGACY_STREAM ? NULL : put_workspace(self, entry, slot);
    const bool is_whole = needs_none || workspace != NULL;
    enum way way = LOOK_CLOSER;
    if (is_whole || entry->start != NULL) {
        *out = call->key.has_out ? Py_NewRef(arguments[ARRAY_OUT]) : made_out(self, call);
        if (*out != NULL)
            way = launch(call, slot, is_whole, stream, arguments);
        else if (PyErr_Occurred())
            way = RAISED;
    }
    Py_XDECREF(workspace);
    if (way != STARTED)
        Py_CLEAR(*out);
    return way;
}

/* Start the vendor's product. *out is a new reference if it was started. */
static enum way start_vendors(struct launcher *self, const struct call *call, PyObject *const *arguments, PyObject **out)
{
    const bool is_cupys = self->exchange == NULL;
    unsigned char unused[ARGUMENT_BYTES];
    for (int which = 0; which < 2; ++which)
        if (!put_factor(call->entry, unused, arguments[ALPHA + which]))
            return LOOK_CLOSER;
    if ((call->key.has_out && overlaps(call)) || (is_cupys && !is_on_current_device(self, call)))
        return LOOK_CLOSER;
    *out = PyObject_CallFunctionObjArgs(self->by_vendor, arguments[ARRAY_A], arguments[ARRAY_B], arguments[ARRAY_OUT],
                                        arguments[ALPHA], arguments[BETA], arguments[ASKED], NULL);
    if (*out == Py_None)
        Py_CLEAR(*out);
    else
        return *out == NULL ? RAISED : STARTED;
    return LOOK_CLOSER;
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
        if (call.entry != NULL)
            ++call.entry->references; /* another thread may clear the table while this one runs Python code */
        else
            call.entry = first_entry(self, &call, arguments[ASKED]);
        if (call.entry != NULL) {
            way = call.entry->kernel == NULL ? start_vendors(self, &call, arguments, &out)
                                             : start_entry(self, &call, arguments, &out);
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
