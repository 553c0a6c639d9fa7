/* First calls: make the entry of a product whose kernel is loaded, or that goes to the vendor. Python decides about
   vectors, conjugates and invalid arguments. */

#include "launcher.h"

#include <float.h>

/* An entry's slot: CUlaunchConfig, then the kernel's arguments; runtime/launch_plan.py has the same layout. */
struct slot {
    uint32_t grid[3], block[3], smem_bytes, padding;
    uint64_t stream, attributes, attribute_count;
    uint64_t matrices[MATRICES];
    unsigned char arguments[10][ARGUMENT_BYTES];
};
enum { M, N, K, ALPHA_OF, LDA, LDB, BETA_OF, LDC, PARTIALS, COUNTERS };
enum { AT_ARGUMENTS = offsetof(struct slot, arguments), AT_MATRICES = offsetof(struct slot, matrices) };
_Static_assert(sizeof(struct slot) <= MOST_SLOT_BYTES && AT_MATRICES == 56, "a slot is larger than an entry's");

#define MOST_ELEMENTS (INT64_MAX / 16) /* of a matrix, so that its bytes fit an int64_t */

static int at_argument(int which) { return AT_ARGUMENTS + which * ARGUMENT_BYTES; }

struct home *home_of(struct launcher *self, int32_t device_type, int32_t device)
{
    for (int at = 0; at < self->home_count; ++at)
        if (self->homes[at].device_type == device_type && self->homes[at].device == device)
            return &self->homes[at];
    return NULL;
}

/* The tsm2_type of the array's type on the device; -1 if unknown. */
static int type_of(const struct home *home, uint64_t type)
{
    for (int number = 0; number < TYPES; ++number)
        if (home->new_out[number] != NULL && home->types[number] == type)
            return number;
    return -1;
}

/* Whether the call's other arguments are the simplest ones. *falls_back: the vendor may compute it. */
static bool is_plain_call(PyObject *asked, bool *falls_back)
{
    *falls_back = true;
    if (asked == Py_None)
        return true;
    PyObject *one[5];
    for (Py_ssize_t at = 0; at < 5; ++at)
        if ((one[at] = PyTuple_GetItem(asked, at)) == NULL)
            return false;
    *falls_back = false;
    return one[0] == Py_False && one[1] == Py_False && one[2] == Py_None && one[4] == Py_False &&
           PyUnicode_Check(one[3]) && PyUnicode_CompareWithASCIIString(one[3], "error") == 0;
}

/* The leading dimension, in elements, of lines `line` apart; 0 if a line's elements are not contiguous. */
static int64_t apart(int64_t elements, int64_t step, int64_t lines, int64_t line)
{
    if (step != 1 && elements != 1)
        return 0;
    const int64_t found = lines == 1 ? elements : line;
    return found >= elements ? found : 0;
}

/* The storage orders that a matrix has, with its leading dimensions in elements; false where it has none, or is larger
   than memory can be. CuPy tells
   strides in bytes, and none of a row-major array without padding. */
static bool read_orders(const struct launcher *self, const struct matrix *matrix, int64_t element_bytes, int64_t ld[2])
{
    const int64_t rows = matrix->extents[0], columns = matrix->extents[1];
    int64_t down = matrix->strides[0], across = matrix->strides[1];
    if (matrix->dimensions != 2 || matrix->is_conjugate || rows < 1 || columns < 1)
        return false;
    if (self->exchange == NULL) {
        if (down == 0 && across == 0)
            down = columns * element_bytes, across = element_bytes;
        if (down % element_bytes != 0 || across % element_bytes != 0)
            return false;
        down /= element_bytes;
        across /= element_bytes;
    }
    ld[0] = apart(rows, down, columns, across);
    ld[1] = apart(columns, across, rows, down);
    return (ld[0] != 0 || ld[1] != 0) && ld[0] <= MOST_ELEMENTS / columns && ld[1] <= MOST_ELEMENTS / rows;
}

/* The bytes that a matrix reaches over. */
static uint64_t span(int64_t rows, int64_t columns, const int64_t ld[2], int64_t element_bytes)
{
    const int64_t lines = ld[0] != 0 ? columns : rows, elements = ld[0] != 0 ? rows : columns;
    return (uint64_t)(((lines - 1) * (ld[0] != 0 ? ld[0] : ld[1]) + elements) * element_bytes);
}

/* Fill the product for the choice. False if Python has to decide. */
static bool read_product(const struct launcher *self, const struct call *call, int type, struct core_product *product)
{
    const struct matrix *a = &call->key.matrices[A], *b = &call->key.matrices[B], *out = &call->key.matrices[OUT];
    const int64_t bytes = core_element_bytes(type);
    memset(product, 0, sizeof *product);
    product->type = type;
    product->batch_count = 1;
    product->makes_c = !call->key.has_out;
    for (int which = A; which < (product->makes_c ? OUT : MATRICES); ++which)
        if (!read_orders(self, &call->key.matrices[which], bytes, product->ld[which]) ||
            call->at[which] % (uint64_t)bytes != 0)
            return false;
    product->m = a->extents[0];
    product->n = b->extents[1];
    product->k = a->extents[1];
    product->is_gram = call->key.is_same && core_is_gram(product);
    return b->extents[0] == product->k && product->m <= MOST_ELEMENTS / product->n &&
           (product->makes_c || (out->extents[0] == product->m && out->extents[1] == product->n));
}

static void put(struct slot *slot, int which, int64_t value) { memcpy(slot->arguments[which], &value, sizeof value); }

/* Fill the entry's slot, and the places of what changes in it. */
static void lay_out(struct entry *entry, const struct core_choice *choice)
{
    const struct core_kernel *kernel = &opened_pack()->kernels[choice->kernel];
    const struct slot bare = {.grid = {choice->grid[0], choice->grid[1], 1},
                              .block = {(uint32_t)kernel->threads, 1, 1},
                              .smem_bytes = (uint32_t)kernel->smem_bytes};
    struct slot slot = bare;
    const bool is_double = entry->largest > FLT_MAX;
    const double one = 1;
    const float one_of_float = 1;
    for (int which = 0; which < 3; ++which)
        put(&slot, M + which, choice->extents[which]);
    put(&slot, LDA, choice->ld[CORE_A]);
    put(&slot, LDB, choice->ld[CORE_B]);
    put(&slot, LDC, choice->ld[CORE_C]);
    memcpy(slot.arguments[ALPHA_OF], is_double ? (const void *)&one : (const void *)&one_of_float,
           is_double ? sizeof one : sizeof one_of_float);
    memcpy(entry->slot, &slot, sizeof slot);
    entry->slot_bytes = sizeof slot;
    for (int which = A; which < MATRICES; ++which)
        entry->at_matrices[which] = AT_MATRICES + which * (int)sizeof slot.matrices[0];
    entry->at_factors[0] = at_argument(ALPHA_OF);
    entry->at_factors[1] = at_argument(BETA_OF);
    entry->at_stream = offsetof(struct slot, stream);
    entry->at_workspace = at_argument(PARTIALS);
    const int first = entry->at_matrices[choice->is_transposed ? B : A];
    const int second = entry->at_matrices[choice->is_transposed ? A : B];
    const int parameters[] = {at_argument(M),   at_argument(N),   at_argument(K),       at_argument(ALPHA_OF),
                              first,            at_argument(LDA), second,               at_argument(LDB),
                              at_argument(BETA_OF), entry->at_matrices[OUT], at_argument(LDC), at_argument(PARTIALS),
                              at_argument(COUNTERS)};
    entry->parameter_count = sizeof parameters / sizeof *parameters;
    for (Py_ssize_t number = 0; number < entry->parameter_count; ++number)
        entry->parameters[number] = (unsigned char)parameters[number];
}

/* How an `out` like the product's is made: the arguments of make_out. `new_out` is held by the entry. False, and an
   exception, where memory lacks. */
static bool put_new_out(const struct launcher *self, struct entry *entry, const struct core_product *product,
                        bool is_row_major)
{
    const long long m = product->m, n = product->n;
    if (self->exchange != NULL) {
        entry->shape_of_out =
            Py_BuildValue("((LL)(LL))", m, n, is_row_major ? n : 1LL, is_row_major ? 1LL : m);
    } else {
        entry->shape_of_out = Py_BuildValue("((LL)N)", m, n, entry->type_of_out);
        entry->type_of_out = Py_BuildValue("{s:s}", "order", is_row_major ? "C" : "F");
    }
    return entry->shape_of_out != NULL && entry->type_of_out != NULL;
}

/* An entry of the choice, held once. NULL, and an exception, where memory lacks. Other Python code may run, and change
   what is known of the home, as soon as a Python object is made here. */
static struct entry *made_entry(const struct launcher *self, const struct call *call,
                                const struct core_product *product, const struct core_choice *choice,
                                const struct home *home, void *kernel)
{
    struct entry *entry = PyMem_Calloc(1, sizeof *entry);
    if (entry == NULL)
        return NULL;
    entry->references = 1;
    entry->launch = home->launch;
    entry->kernel = kernel;
    entry->type_of_out = Py_NewRef(home->new_out[product->type]); /* keeps the key's type alive */
    memcpy(&entry->key, &call->key, sizeof call->key);
    entry->scalar = "fdFDff"[product->type]; /* type of the factors, as NumPy's character */
    entry->largest = entry->scalar == 'd' || entry->scalar == 'D' ? DBL_MAX : FLT_MAX;
    const int64_t rows[] = {product->m, product->k, product->m}, columns[] = {product->k, product->n, product->n};
    for (int which = A; which < (product->makes_c ? OUT : MATRICES); ++which)
        entry->spans[which] = span(rows[which], columns[which], product->ld[which], core_element_bytes(product->type));
    if (kernel == NULL)
        return entry;
    lay_out(entry, choice);
    entry->needed_bytes[0] = choice->partials_bytes;
    entry->needed_bytes[1] = choice->counters_bytes;
    entry->workspace = Py_NewRef(choice->partials_bytes > 0 ? home->workspace : Py_None);
    entry->alignment_mask = (uint64_t)core_element_bytes(product->type) - 1;
    const bool is_row_major = opened_pack()->kernels[choice->kernel].orders[CORE_C] == CORE_ROW_MAJOR;
    if (!put_new_out(self, entry, product, is_row_major != choice->is_transposed)) {
        drop(entry);
        return NULL;
    }
    return entry;
}

struct entry *first_entry(struct launcher *self, const struct call *call, PyObject *asked)
{
    const struct home *home = home_of(self, call->key.device_type, call->key.device);
    const int type = home == NULL ? -1 : type_of(home, call->key.type);
    const struct core_pack *pack = opened_pack();
    struct core_product product;
    bool falls_back;
    if (type < 0 || pack == NULL || !is_plain_call(asked, &falls_back) || !read_product(self, call, type, &product))
        return NULL;
    const struct core_choice choice = core_choose(pack, &product, core_device_index(pack, home->name));
    if (choice.reason == CORE_NO_KERNEL || choice.is_too_large)
        return NULL;
    const bool is_vendors = falls_back && choice.is_vendors;
    const int at = choice.kernel * INDEX_WIDTHS_HERE + (choice.index_bits == 64);
    void *kernel = is_vendors ? NULL : home->kernels[at];
    if (kernel == NULL && !is_vendors)
        return NULL; /* not loaded */
    struct entry *entry = made_entry(self, call, &product, &choice, home, kernel);
    if (entry != NULL) {
        ++entry->references; /* the caller's: dropping an entry may run code that clears the table */
        put_entry(self, entry, asked);
    }
    return entry;
}

/* The kernels of the pack; 0 if it is not open. */
static int kernel_count(void) { return opened_pack() == NULL ? 0 : (int)opened_pack()->header->kernel_count; }

/* Clear the home of a device. */
static void clear_home(struct home *home)
{
    for (int number = 0; number < TYPES; ++number)
        Py_CLEAR(home->new_out[number]);
    Py_CLEAR(home->workspace);
    PyMem_Free(home->kernels);
    home->kernels = NULL;
}

void forget_homes(struct launcher *self)
{
    for (int at = 0; at < self->home_count; ++at)
        clear_home(&self->homes[at]);
    self->home_count = 0;
}

/* The home of the device in the context of this workspace's key; NULL, perhaps with an exception, if homes are full. */
static struct home *home_in(struct launcher *self, const struct array_info *info, PyObject *workspace)
{
    struct home *home = home_of(self, info->device_type, info->device);
    if (home == NULL) {
        if (self->home_count == MOST_HOMES)
            return NULL;
        home = &self->homes[self->home_count];
        memset(home, 0, sizeof *home);
    } else {
        const int is_same = PyObject_RichCompareBool(home->workspace, workspace, Py_EQ);
        if (is_same != 0)
            return is_same < 0 ? NULL : home;
    }
    void **kernels = PyMem_Calloc((size_t)kernel_count() * INDEX_WIDTHS_HERE, sizeof *kernels);
    if (kernels == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    if (home->kernels != NULL) { /* another context has other kernels */
        forget(self);
        clear_home(home);
    }
    home->kernels = kernels;
    home->workspace = Py_NewRef(workspace);
    home->device_type = info->device_type;
    home->device = info->device;
    if (home == &self->homes[self->home_count])
        ++self->home_count;
    return home;
}

PyObject *know(PyObject *object, PyObject *arguments)
{
    struct launcher *self = (struct launcher *)object;
    PyObject *array, *workspace, *new_out;
    const char *name;
    int type, number, width;
    unsigned long long launch, kernel;
    struct array_info info;
    if (!PyArg_ParseTuple(arguments, "OsiO(ii)(KK)O!", &array, &name, &type, &new_out, &number, &width, &launch, &kernel,
                          &PyTuple_Type, &workspace))
        return NULL;
    const bool is_one = type >= 0 && type < TYPES && number >= 0 && number < kernel_count() && width >= 0 &&
                        width < INDEX_WIDTHS_HERE && launch != 0 && kernel != 0 && strlen(name) < MOST_NAME_BYTES;
    if (!is_one) {
        PyErr_SetString(PyExc_ValueError, "know: this is no kernel");
        return NULL;
    }
    if (!read_array(self, array, &info)) {
        PyErr_Clear();
        Py_RETURN_FALSE;
    }
    struct home *home = home_in(self, &info, workspace);
    if (home == NULL) {
        if (PyErr_Occurred())
            return NULL;
        Py_RETURN_FALSE;
    }
    memcpy(home->name, name, strlen(name) + 1);
    home->launch = (launch_function)(uintptr_t)launch;
    home->kernels[number * INDEX_WIDTHS_HERE + width] = (void *)(uintptr_t)kernel;
    home->types[type] = info.type;
    PyObject *before = home->new_out[type];
    home->new_out[type] = Py_NewRef(new_out);
    Py_XDECREF(before);
    Py_RETURN_TRUE;
}
