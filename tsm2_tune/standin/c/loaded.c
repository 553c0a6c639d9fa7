/* The cuBLAS that the program has loaded, and dlsym, by which programs ask for its functions. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
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

enum { MOST_HANDLES = 1024 };

/* The cuBLAS that was found first: that of handles nothing is known of. */
static _Atomic(void *) first;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Handles of other libraries than the first. */
static struct {
    _Atomic(cublas_handle) handle;
    void *library;
} others[MOST_HANDLES];
static _Atomic int other_count;

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

static int is_cublas(struct dl_phdr_info *info, size_t bytes, void *found)
{
    (void)bytes;
    const char *slash = strrchr(info->dlpi_name, '/');
    if (strncmp(slash == NULL ? info->dlpi_name : slash + 1, "libcublas.so", 12) != 0)
        return 0;
    snprintf(found, PATH_MAX, "%s", info->dlpi_name);
    return 1;
}

static void *first_library(void)
{
    void *library = atomic_load(&first), *before = NULL;
    char path[PATH_MAX] = "";
    if (library != NULL)
        return library;
    if (dl_iterate_phdr(is_cublas, path) != 0)
        library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    if (library == NULL || atomic_compare_exchange_strong(&first, &before, library))
        return library;
    return before; /* another thread found it, too */
}

static void *library_of(cublas_handle handle)
{
    const int count = atomic_load_explicit(&other_count, memory_order_acquire);
    for (int at = 0; at < count; ++at)
        if (atomic_load_explicit(&others[at].handle, memory_order_relaxed) == handle)
            return others[at].library;
    return first_library();
}

void *cublas_function(const char *name, cublas_handle handle, _Atomic(void *) *place)
{
    const bool is_first = atomic_load_explicit(&other_count, memory_order_relaxed) == 0;
    void *found = is_first ? atomic_load_explicit(place, memory_order_acquire) : NULL;
    if (found != NULL)
        return found;
    void *library = library_of(handle);
    found = next_dlsym(library == NULL ? RTLD_NEXT : library, name);
    if (is_first)
        atomic_store_explicit(place, found, memory_order_release);
    return found;
}

/* The cuBLAS that the code at this address was linked with; NULL where it was with none. */
static void *library_of_code(const void *address, const char *name)
{
    Dl_info of_code, of_function;
    struct link_map *map = NULL;
    if (dladdr1(address, &of_code, (void **)&map, RTLD_DL_LINKMAP) == 0 || map == NULL || map->l_name[0] == '\0')
        return NULL; /* of the program itself: its libraries come behind this one in one order */
    void *object = dlopen(map->l_name, RTLD_LAZY | RTLD_NOLOAD);
    void *function = object == NULL ? NULL : next_dlsym(object, name); /* among what it was linked with alone */
    void *library = NULL;
    if (function != NULL && dladdr(function, &of_function) != 0 && of_function.dli_fname != NULL)
        library = dlopen(of_function.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    if (object != NULL)
        dlclose(object);
    return library;
}

/* cublasCreate by a program that has two cuBLAS libraries is of the one that the caller was linked with. */
EXPORTED int cublasCreate_v2(cublas_handle *handle)
{
    static const char name[] = "cublasCreate_v2";
    void *usual = first_library(), *library = library_of_code(__builtin_return_address(0), name);
    if (library == NULL)
        library = usual;
    void *found = next_dlsym(library == NULL ? RTLD_NEXT : library, name);
    int (*create)(cublas_handle *);
    memcpy(&create, &found, sizeof found);
    if (create == NULL)
        return CUBLAS_NOT_INITIALIZED;
    const int status = create(handle);
    if (status != CUBLAS_SUCCESS || library == usual || library == NULL)
        return status;
    pthread_mutex_lock(&lock);
    const int at = atomic_load(&other_count);
    if (at < MOST_HANDLES) {
        others[at].library = library;
        atomic_store(&others[at].handle, *handle);
        atomic_store_explicit(&other_count, at + 1, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
    return status;
}

/* A program asks for a function by name: it gets the one here where it would get that of the first cuBLAS. */
EXPORTED void *dlsym(void *library, const char *name)
{
    if (strncmp(name, "cublas", 6) == 0 && library != RTLD_NEXT && library != RTLD_DEFAULT) {
        void *here = function_here(name);
        void *found = here == NULL ? NULL : next_dlsym(library, name);
        if (found != NULL)
            return next_dlsym(first_library(), name) == found ? here : found;
    }
    return of_c_library()(library, name); /* a jump, so that RTLD_NEXT is the caller's */
}
