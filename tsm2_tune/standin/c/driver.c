/* The CUDA driver of the process. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>

#include "standin.h"

static struct driver_functions functions;
static bool is_whole;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void find_all(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_LAZY);
    is_whole = library != NULL;
#define FIND(name, symbol, parameters)                                                                               \
    if (is_whole) {                                                                                                  \
        void *found = next_dlsym(library, symbol);                                                                   \
        memcpy(&functions.name, &found, sizeof found);                                                               \
        is_whole = found != NULL;                                                                                    \
    }
    DRIVER(FIND)
#undef FIND
}

const struct driver_functions *driver(void)
{
    pthread_once(&once, find_all);
    return is_whole ? &functions : NULL;
}
