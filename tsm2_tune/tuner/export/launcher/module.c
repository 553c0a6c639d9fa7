/* The launcher's Python type and module. */

#include "launcher.h"

PyDoc_STRVAR(start_text, "start(a, b, out, alpha, beta, asked, stream): start the product, or ask the plain starter to");
PyDoc_STRVAR(add_text, "add(a, b, out, asked, start, addresses, slot, places, parameters, spans, factors, workspace, new_out):\n"
                       "products like this one, which Python's short way knows, are started here from now on");

PyDoc_STRVAR(know_text, "know(array, name, type, new_out, (number, width), (launch, kernel), workspace): a loaded kernel that\n"
                        "is loaded where arrays like this one are: first products of such arrays are started here from now on");

static const char *const name_texts[NAMES] = {"requires_grad", "is_neg",    "is_conj",     "shape",     "_c_contiguous",
                                              "strides",       "dtype",     "data",        "ptr",       "device_id",
                                              "sizes_bytes",   "addresses", "owners"};

static PyObject *new(PyTypeObject *type, PyObject *arguments, PyObject *named)
{
    PyObject *plain, *exchange, *kinds, *stream_of, *make_out, *current_device, *workspaces, *by_vendor;
    if (named != NULL && PyDict_Size(named) > 0)
        return PyErr_Format(PyExc_TypeError, "Launcher: no argument has a name");
    if (!PyArg_ParseTuple(arguments, "OOO!OOOO!O", &plain, &exchange, &PyTuple_Type, &kinds, &stream_of, &make_out,
                          &current_device, &PyDict_Type, &workspaces, &by_vendor))
        return NULL;
    const struct dl_exchange *functions = NULL;
    if (exchange != Py_None) {
        functions = PyCapsule_GetPointer(exchange, "dlpack_exchange_api");
        if (functions == NULL)
            return NULL;
        if (functions->header.version.major != DL_MAJOR || functions->describe == NULL)
            return PyErr_Format(PyExc_ValueError, "Launcher: tensors are described in a way that is not known here");
    }
    if (PyTuple_Size(kinds) != 2)
        return PyErr_Format(PyExc_ValueError, "Launcher: expected two types of arrays");
    PyObject *(*allocate)(PyTypeObject *, Py_ssize_t) =
        (PyObject * (*)(PyTypeObject *, Py_ssize_t)) PyType_GetSlot(type, Py_tp_alloc);
    struct launcher *self = (struct launcher *)allocate(type, 0);
    if (self == NULL)
        return NULL;
    self->plain = Py_NewRef(plain);
    self->kinds = Py_NewRef(kinds);
    self->stream_of = Py_NewRef(stream_of);
    self->make_out = Py_NewRef(make_out);
    self->current_device = Py_NewRef(current_device);
    self->workspaces = Py_NewRef(workspaces);
    self->by_vendor = Py_NewRef(by_vendor);
    self->exchange_owner = Py_NewRef(exchange);
    self->exchange = functions;
    for (int name = 0; name < NAMES; ++name)
        self->names[name] = PyUnicode_InternFromString(name_texts[name]);
    if (PyErr_Occurred())
        Py_CLEAR(self);
    return (PyObject *)self;
}

static int traverse(PyObject *object, visitproc visit, void *arg)
{
    struct launcher *self = (struct launcher *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->plain);
    Py_VISIT(self->kinds);
    Py_VISIT(self->stream_of);
    Py_VISIT(self->make_out);
    Py_VISIT(self->current_device);
    Py_VISIT(self->workspaces);
    Py_VISIT(self->by_vendor);
    for (int at = 0; at < BUCKETS; ++at)
        if (self->table[at] != NULL) {
            Py_VISIT(self->table[at]->start);
            Py_VISIT(self->table[at]->type_of_out);
        }
    for (int at = 0; at < self->home_count; ++at)
        for (int type = 0; type < TYPES; ++type)
            Py_VISIT(self->homes[at].new_out[type]);
    return 0;
}

static int clear(PyObject *object)
{
    struct launcher *self = (struct launcher *)object;
    forget(self);
    forget_homes(self);
    Py_CLEAR(self->plain);
    return 0;
}

static void deallocate(PyObject *object)
{
    struct launcher *self = (struct launcher *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    forget(self);
    forget_homes(self);
    PyObject *held[] = {self->plain,          self->kinds,      self->stream_of, self->make_out,
                        self->current_device, self->workspaces, self->by_vendor, self->exchange_owner};
    for (int name = 0; name < NAMES; ++name)
        Py_XDECREF(self->names[name]);
    for (size_t at = 0; at < sizeof held / sizeof *held; ++at)
        Py_XDECREF(held[at]);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {{"start", (PyCFunction)(void (*)(void))start, METH_FASTCALL, start_text},
                                {"add", add, METH_VARARGS, add_text},
                                {"know", know, METH_VARARGS, know_text},
                                {NULL, NULL, 0, NULL}};
static PyType_Slot slots[] = {{Py_tp_new, new},           {Py_tp_dealloc, deallocate}, {Py_tp_traverse, traverse},
                              {Py_tp_clear, clear},       {Py_tp_methods, methods},    {0, NULL}};
static PyType_Spec specification = {"tsm2_launcher.Launcher", sizeof(struct launcher), 0,
                                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE, slots};

static int execute(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &specification, NULL);
    const int result = type == NULL ? -1 : PyModule_AddType(module, (PyTypeObject *)type);
    Py_XDECREF(type);
    return result;
}

PyDoc_STRVAR(open_text, "open_pack(bytes): open the pack among whose kernels first calls choose");
static PyMethodDef functions[] = {{"open_pack", open_pack, METH_O, open_text},
                                  {NULL, NULL, 0, NULL}};

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, execute}, {0, NULL}};
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "tsm2_launcher", NULL, 0, functions, module_slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_tsm2_launcher(void);
PyMODINIT_FUNC PyInit_tsm2_launcher(void)
{
    return PyModuleDef_Init(&definition);
}
