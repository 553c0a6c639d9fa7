/* The plan cache: a hash table of entries by the key of a call. */

#include "launcher.h"

void drop(struct entry *entry)
{
    if (--entry->references > 0)
        return;
    Py_XDECREF(entry->asked);
    Py_XDECREF(entry->start);
    Py_XDECREF(entry->shape_of_out);
    Py_XDECREF(entry->type_of_out);
    Py_XDECREF(entry->workspace);
    PyMem_Free(entry);
}

void forget(struct launcher *self)
{
    self->entries = 0; /* first, since dropping an entry may run code that adds another one */
    for (int at = 0; at < BUCKETS; ++at) {
        struct entry *entry = self->table[at];
        self->table[at] = NULL;
        if (entry != NULL)
            drop(entry);
    }
}

bool is_plain(PyObject *asked)
{
    if (asked == Py_None)
        return true;
    if (!PyTuple_CheckExact(asked))
        return false;
    for (Py_ssize_t at = 0; at < PyTuple_Size(asked); ++at) {
        PyObject *one = PyTuple_GetItem(asked, at);
        if (one != Py_None && one != Py_True && one != Py_False && !PyUnicode_CheckExact(one))
            return false;
    }
    return true;
}

static uint64_t hash_of(const struct key *key, PyObject *asked)
{
    uint64_t words[sizeof *key / sizeof(uint64_t)], hash = asked == Py_None ? 0 : (uint64_t)PyObject_Hash(asked);
    memcpy(words, key, sizeof words);
    for (size_t at = 0; at < sizeof words / sizeof *words; ++at) {
        hash = (hash ^ words[at]) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 29;
    }
    return hash;
}

/* The key's place in the table: its entry, or where to put one. */
static struct entry **place(struct launcher *self, const struct key *key, PyObject *asked, uint64_t hash)
{
    for (uint64_t at = hash % BUCKETS;; at = (at + 1) % BUCKETS) {
        struct entry *entry = self->table[at];
        if (entry == NULL)
            return &self->table[at];
        if (entry->hash == hash && memcmp(&entry->key, key, sizeof *key) == 0 &&
            (entry->asked == asked || PyObject_RichCompareBool(entry->asked, asked, Py_EQ) == 1))
            return &self->table[at];
    }
}

struct entry *entry_of(struct launcher *self, const struct call *call, PyObject *asked)
{
    return *place(self, &call->key, asked, hash_of(&call->key, asked));
}

void put_entry(struct launcher *self, struct entry *entry, PyObject *asked)
{
    entry->asked = Py_NewRef(asked);
    entry->hash = hash_of(&entry->key, asked);
    if (self->entries >= MOST_ENTRIES)
        forget(self);
    struct entry **at = place(self, &entry->key, asked, entry->hash), *before = *at;
    *at = entry;
    if (before != NULL)
        drop(before);
    else
        ++self->entries;
}

/* Whether these bytes are within the entry's slot. */
static bool fits(const struct entry *entry, int at, int bytes)
{
    return at >= 0 && at <= entry->slot_bytes - bytes;
}

static bool is_sound(const struct entry *entry)
{
    bool sound = entry->slot_bytes <= MOST_SLOT_BYTES && entry->parameter_count <= MOST_PARAMETERS &&
                 fits(entry, entry->at_stream, 8) && entry->launch != NULL && entry->kernel != NULL &&
                 fits(entry, entry->at_workspace, WORKSPACE_PARTS * ARGUMENT_BYTES);
    for (int which = A; which < MATRICES; ++which)
        sound = sound && fits(entry, entry->at_matrices[which], 8);
    for (int which = 0; which < 2; ++which)
        sound = sound && fits(entry, entry->at_factors[which], 16);
    for (Py_ssize_t number = 0; sound && number < entry->parameter_count; ++number)
        sound = fits(entry, entry->parameters[number], 8);
    return sound && entry->scalar != 0 && strchr("fdFD", entry->scalar) != NULL;
}

PyObject *add(PyObject *object, PyObject *arguments)
{
    struct launcher *self = (struct launcher *)object;
    struct call call;
    PyObject *given[ARGUMENTS] = {NULL}, *start, *workspace, *shape, *type;
    unsigned long long launch, kernel;
    const char *slot, *parameters;
    struct entry *entry = PyMem_Calloc(1, sizeof *entry);
    if (entry == NULL)
        return PyErr_NoMemory();
    entry->references = 1;
    if (!PyArg_ParseTuple(arguments, "OOOOO(KK)y#(iiiiii)y#(KKKK)(Cd)(OKKi)(O!O!)", &given[ARRAY_A], &given[ARRAY_B],
                          &given[ARRAY_OUT], &given[ASKED], &start, &launch, &kernel, &slot, &entry->slot_bytes,
                          &entry->at_matrices[A], &entry->at_matrices[B], &entry->at_matrices[OUT],
                          &entry->at_factors[0], &entry->at_factors[1], &entry->at_stream, &parameters,
                          &entry->parameter_count, &entry->spans[A], &entry->spans[B], &entry->spans[OUT],
                          &entry->alignment_mask, &entry->scalar, &entry->largest, &workspace,
                          &entry->needed_bytes[0], &entry->needed_bytes[1], &entry->at_workspace, &PyTuple_Type, &shape, &PyDict_Type, &type)) {
        drop(entry);
        return NULL;
    }
    entry->launch = (launch_function)(uintptr_t)launch;
    entry->kernel = (void *)(uintptr_t)kernel;
    memcpy(entry->parameters, parameters,
           entry->parameter_count < MOST_PARAMETERS ? (size_t)entry->parameter_count : MOST_PARAMETERS);
    if (!is_sound(entry)) {
        drop(entry);
        PyErr_SetString(PyExc_ValueError, "add: this is no launch");
        return NULL;
    }
    memcpy(entry->slot, slot, entry->slot_bytes);
    if (!is_plain(given[ASKED]) || !read_call(self, given, &call)) { /* only Python can start such a product */
        drop(entry);
        PyErr_Clear();
        Py_RETURN_FALSE;
    }
    entry->start = Py_NewRef(start);
    entry->shape_of_out = Py_NewRef(shape);
    entry->type_of_out = Py_NewRef(type);
    entry->workspace = Py_NewRef(workspace);
    memcpy(&entry->key, &call.key, sizeof call.key); /* with the padding */
    put_entry(self, entry, given[ASKED]);
    Py_RETURN_TRUE;
}
