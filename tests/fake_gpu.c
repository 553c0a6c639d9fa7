/* A CUDA driver as far as its devices are asked for: one GPU, or what FAKE_GPU says. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int is(const char *what)
{
    const char *said = getenv("FAKE_GPU");
    return said != NULL && strcmp(said, what) == 0;
}

int cuInit(unsigned flags)
{
    while (is("hangs"))
        pause();
    if (is("crashes"))
        abort();
    return is("mismatched") ? 803 : (int)flags;
}

int cuDriverGetVersion(int *version) { return *version = is("old") ? 12040 : 13000, 0; }
int cuDeviceGetCount(int *count) { return *count = !is("none"), 0; }
int cuDeviceGet(int *device, int ordinal) { return *device = ordinal, 0; }
int cuDeviceGetName(char *name, int bytes, int device) { return snprintf(name, bytes, "Fake GPU %d", device), 0; }
int cuDeviceGetPCIBusId(char *name, int bytes, int device) { return snprintf(name, bytes, "0000:0%d:00.0", device), 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) { return *value = attribute == 75 ? 9 : device, 0; }
