#include "driver.h"

#include <dlfcn.h>
#include <string.h>

/* ISO C has no conversion from an object's address to a function's. */
static int find(void *library, const char *symbol, void *function)
{
    void *address = dlsym(library, symbol);
    memcpy(function, &address, sizeof address);
    return address != NULL;
}

int driver_open(struct driver *driver)
{
    memset(driver, 0, sizeof *driver);
    driver->library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (driver->library == NULL)
        return 0;
    int has_all = 1;
#define FIND(name, symbol, parameters) has_all &= find(driver->library, symbol, &driver->name);
    DRIVER_FUNCTIONS(FIND)
#undef FIND
    find(driver->library, "cuStreamGetId", &driver->stream_id);
    if (has_all && driver->init(0) == 0)
        return 1;
    driver_close(driver);
    return 0;
}

void driver_close(struct driver *driver)
{
    if (driver->library != NULL)
        dlclose(driver->library);
    driver->library = NULL;
}
