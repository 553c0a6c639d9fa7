/* Find the functions of the CUDA driver in this process. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>

#include "standin.h"

enum { NOT_LOOKED_FOR, WHOLE, MISSING };
enum { RELAXED_CAPTURE = 2 };
static struct driver_functions functions;
static _Atomic int state;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Find all functions and return the new state. dlopen is called without holding the lock, to avoid a deadlock: another
   thread, inside dlopen, may run a library's constructor that needs this lock, and this dlopen waits for that thread. */
static int find_all(void)
{
    struct driver_functions found_here;
    void *library = dlopen("libcuda.so.1", RTLD_LAZY);
    bool is_whole = library != NULL;
#define FIND(name, symbol, parameters)                                                                               \
    if (is_whole) {                                                                                                  \
        void *found = next_dlsym(library, symbol);                                                                   \
        memcpy(&found_here.name, &found, sizeof found);                                                              \
        is_whole = found != NULL;                                                                                    \
    }
    DRIVER(FIND)
#undef FIND
    pthread_mutex_lock(&lock);
    if (atomic_load(&state) == NOT_LOOKED_FOR) {
        if (is_whole)
            functions = found_here;
        atomic_store_explicit(&state, is_whole ? WHOLE : MISSING, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
    return atomic_load(&state);
}

const struct driver_functions *driver(void)
{
    int found = atomic_load_explicit(&state, memory_order_acquire);
    if (found == NOT_LOOKED_FOR)
        found = find_all();
    return found == WHOLE ? &functions : NULL;
}

int relax_captures(void)
{
    int mode = RELAXED_CAPTURE;
    driver()->exchange_capture_mode(&mode);
    return mode;
}

void restore_captures(int mode) { driver()->exchange_capture_mode(&mode); }

bool is_capturing(cu_stream stream)
{
    int status = 0;
    return driver()->is_capturing(stream, &status) != 0 || status != 0;
}
