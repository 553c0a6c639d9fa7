/* Find the real cuBLAS and cuBLASLt in the program, and intercept dlsym, with which programs look up their functions. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>

#include "standin.h"

#if defined(__x86_64__)
#define FIRST_VERSION "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define FIRST_VERSION "GLIBC_2.17"
#else
#define FIRST_VERSION "GLIBC_2.0"
#endif

typedef void *(*dlsym_function)(void *library, const char *name);

struct kind cublas_kind = {"libcublas.so", "libcublas-", "cublasCreate_v2", NULL};
struct kind lt_kind = {"libcublasLt.so", "libcublasLt-", "cublasLtMatmul", NULL};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* A list entry for a handle that a second cuBLAS library has created. Entries are never freed, but reused. */
struct other {
    _Atomic(cublas_handle) handle; /* NULL: the entry is free */
    _Atomic(void *) library;
    struct other *next;
};
static struct other *_Atomic others;

static dlsym_function of_c_library(void)
{
    static _Atomic(void *) found;
    void *function = atomic_load_explicit(&found, memory_order_acquire);
    if (function == NULL) {
        function = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
        if (function == NULL)
            function = dlvsym(RTLD_NEXT, "dlsym", FIRST_VERSION);
        atomic_store_explicit(&found, function, memory_order_release);
    }
    dlsym_function as_function;
    memcpy(&as_function, &function, sizeof function);
    return as_function;
}

void *next_dlsym(void *library, const char *name) { return of_c_library()(library, name); }

_Atomic uint64_t closings;

static int close_object(void *object)
{
    static _Atomic(void *) place;
    void *found = atomic_load(&place);
    if (found == NULL)
        atomic_store(&place, found = next_dlsym(RTLD_NEXT, "dlclose"));
    int (*close)(void *);
    memcpy(&close, &found, sizeof found);
    return close(object);
}

/* Count before and after the call: another object may be loaded at the same address at any time in between. */
EXPORTED int dlclose(void *object)
{
    atomic_fetch_add(&closings, 1);
    const int status = close_object(object);
    atomic_fetch_add(&closings, 1);
    return status;
}

/* Return the stand-in's own function of this name; NULL if it has none. */
static void *function_here(const char *name)
{
    static _Atomic(void *) place;
    void *own = atomic_load_explicit(&place, memory_order_acquire);
    if (own == NULL) {
        Dl_info of_this;
        own = dladdr(&closings, &of_this) == 0 ? NULL : dlopen(of_this.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
        atomic_store_explicit(&place, own, memory_order_release);
    }
    return own == NULL ? NULL : next_dlsym(own, name);
}

static bool begins(const char *name, const char *with) { return strncmp(name, with, strlen(with)) == 0; }

static bool is_called(const struct kind *kind, const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash == NULL ? path : slash + 1;
    return begins(name, kind->plain) || begins(name, kind->hashed);
}

/* The paths of the loaded shared objects. */
struct paths {
    char **at;
    size_t count;
};

static int add_path(struct dl_phdr_info *info, size_t bytes, void *found)
{
    struct paths *paths = found;
    char **more = realloc(paths->at, (paths->count + 1) * sizeof *more);
    (void)bytes;
    if (more == NULL)
        return 1;
    paths->at = more;
    more[paths->count] = strdup(info->dlpi_name);
    return more[paths->count++] == NULL;
}

static void *object_of(const void *function)
{
    Dl_info found;
    const bool is_known = function != NULL && dladdr(function, &found) != 0 && found.dli_fname != NULL;
    return is_known ? dlopen(found.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : NULL;
}

/* Return a handle of the loaded object at this path if its file name is that of a library of this kind, else NULL. With
   `by_functions` ignore the name: return the object, or its dependency, that defines the function `kind->function`. */
static void *library_at(const struct kind *kind, const char *path, bool by_functions)
{
    if (path[0] == '\0' || !(by_functions || is_called(kind, path)))
        return NULL;
    void *object = dlopen(path, RTLD_LAZY | RTLD_NOLOAD), *library = object;
    if (object != NULL && by_functions) {
        const void *function = next_dlsym(object, kind->function);
        library = function == function_here(kind->function) ? NULL : object_of(function);
        close_object(object);
    }
    return library;
}

static void *first_library(struct kind *kind)
{
    void *library = atomic_load(&kind->first), *before = NULL;
    struct paths paths = {NULL, 0};
    if (library != NULL)
        return library;
    dl_iterate_phdr(add_path, &paths);
    for (int by_functions = 0; by_functions < 2; ++by_functions)
        for (size_t at = 0; at < paths.count && library == NULL; ++at)
            library = paths.at[at] == NULL ? NULL : library_at(kind, paths.at[at], by_functions);
    for (size_t at = 0; at < paths.count; ++at)
        free(paths.at[at]);
    free(paths.at);
    if (library == NULL || atomic_compare_exchange_strong(&kind->first, &before, library))
        return library;
    return before; /* another thread was first */
}

/* Return the handle's entry; NULL if the first library has created the handle. */
static struct other *other_of(cublas_handle handle)
{
    struct other *one = handle == NULL ? NULL : atomic_load_explicit(&others, memory_order_acquire);
    while (one != NULL && atomic_load_explicit(&one->handle, memory_order_acquire) != handle)
        one = one->next;
    return one;
}

/* Return the function of this name that the program would call without the stand-in: that of another preloaded tool, or
   that of the first library. */
static void *following_function(struct kind *kind, const char *name)
{
    void *function = next_dlsym(RTLD_NEXT, name), *library = first_library(kind);
    Dl_info found;
    if (library == NULL || (function != NULL && dladdr(function, &found) != 0 && !is_called(kind, found.dli_fname)))
        return function;
    return next_dlsym(library, name);
}

void *cublas_function(const char *name, cublas_handle handle, _Atomic(void *) *place)
{
    struct other *other = other_of(handle);
    if (other != NULL)
        return next_dlsym(atomic_load(&other->library), name);
    void *found = atomic_load_explicit(place, memory_order_acquire);
    if (found == NULL) {
        found = following_function(&cublas_kind, name);
        atomic_store_explicit(place, found, memory_order_release);
    }
    return found;
}

/* Return a handle of the shared object that contains this code. Return NULL for code in the program itself, whose
   functions the linker finds in the order of loading, and for code in no object. */
static void *object_of_code(const void *address)
{
    Dl_info of_code;
    struct link_map *map = NULL;
    if (dladdr1(address, &of_code, (void **)&map, RTLD_DL_LINKMAP) == 0 || map == NULL || map->l_name[0] == '\0')
        return NULL;
    return dlopen(map->l_name, RTLD_LAZY | RTLD_NOLOAD);
}

bool is_code_of(const struct kind *kind, const void *address)
{
    void *object = object_of_code(address);
    const bool is_own = object != NULL && object_of(next_dlsym(object, kind->function)) == object;
    if (object != NULL)
        close_object(object);
    return is_own;
}

/* Return the library of this kind that the shared object of this code was linked with. Return NULL if there is none, or
   if the object itself defines functions of these names, which look up the library's functions with dlsym. */
static void *library_of_code(const struct kind *kind, const void *address)
{
    void *object = object_of_code(address);
    if (object == NULL)
        return NULL;
    void *library = object_of(next_dlsym(object, kind->function)); /* searches the object and its dependencies */
    close_object(object);
    return library == object ? NULL : library;
}

void *function_for_code(struct kind *kind, const void *address, const char *name)
{
    void *library = library_of_code(kind, address);
    const bool is_other = library != NULL && library != first_library(kind);
    return is_other ? next_dlsym(library, name) : following_function(kind, name);
}

/* Record that this library created the handle. `library` NULL means the first library, or that the handle is destroyed. */
static void assign(cublas_handle handle, void *library)
{
    pthread_mutex_lock(&lock);
    struct other *one = other_of(handle);
    if (library == NULL) {
        if (one != NULL)
            atomic_store_explicit(&one->handle, NULL, memory_order_release);
        pthread_mutex_unlock(&lock);
        return;
    }
    for (one = one == NULL ? atomic_load(&others) : one; one != NULL; one = one->next)
        if (atomic_load(&one->handle) == NULL || atomic_load(&one->handle) == handle)
            break;
    struct other *new = one == NULL ? calloc(1, sizeof *new) : one;
    if (new != NULL) {
        atomic_store(&new->library, library);
        atomic_store_explicit(&new->handle, handle, memory_order_release);
    }
    if (one == NULL && new != NULL) {
        new->next = atomic_load(&others);
        atomic_store_explicit(&others, new, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
}

/* Create the handle with the cuBLAS that the caller was linked with, since a program may have two cuBLAS libraries. */
EXPORTED int cublasCreate_v2(cublas_handle *handle)
{
    static const char name[] = "cublasCreate_v2";
    void *library = library_of_code(&cublas_kind, __builtin_return_address(0));
    const bool is_other = library != NULL && library != first_library(&cublas_kind);
    void *found = is_other ? next_dlsym(library, name) : following_function(&cublas_kind, name);
    int (*create)(cublas_handle *);
    memcpy(&create, &found, sizeof found);
    if (create == NULL)
        return CUBLAS_NOT_INITIALIZED;
    const int status = create(handle);
    if (status == CUBLAS_SUCCESS)
        assign(*handle, is_other ? library : NULL);
    return status;
}

EXPORTED int cublasDestroy_v2(cublas_handle handle)
{
    static _Atomic(void *) place;
    void *found = cublas_function("cublasDestroy_v2", handle, &place);
    int (*destroy)(cublas_handle);
    memcpy(&destroy, &found, sizeof found);
    assign(handle, NULL); /* before the call: another thread may get the same handle before it returns */
    return destroy == NULL ? CUBLAS_NOT_INITIALIZED : destroy(handle);
}

/* Return the stand-in's function if the program would otherwise get that of the first library. */
EXPORTED void *dlsym(void *library, const char *name)
{
    if (strncmp(name, "cublas", 6) == 0 && library != RTLD_NEXT) {
        struct kind *kind = begins(name, "cublasLt") ? &lt_kind : &cublas_kind;
        void *here = function_here(name);
        void *found = here == NULL ? NULL : next_dlsym(library == RTLD_DEFAULT ? RTLD_NEXT : library, name);
        if (here != NULL && library == RTLD_DEFAULT)
            return found == NULL ? NULL : here; /* `found` is the function that dlsym returns without the stand-in */
        if (found != NULL)
            return next_dlsym(first_library(kind), name) == found ? here : found;
    }
    return of_c_library()(library, name); /* a tail call, so that RTLD_NEXT refers to the caller */
}
