/* DLPack's C exchange API as far as it is used here: https://dmlc.github.io/dlpack/latest/c_api.html, version 1.3. */

#ifndef DLPACK_EXCHANGE_H
#define DLPACK_EXCHANGE_H

#include <stdint.h>

enum { DL_MAJOR = 1, DL_COMPLEX = 5 };

struct dl_device {
    int32_t type, number;
};

struct dl_type {
    uint8_t code, bits;
    uint16_t lanes;
};

struct dl_tensor {
    void *data;
    struct dl_device device;
    int32_t dimensions;
    struct dl_type type;
    int64_t *extents, *strides; /* in elements; the tensor's own, as long as it is not changed */
    uint64_t byte_offset;
};

struct dl_version {
    uint32_t major, minor;
};

struct dl_exchange { /* later minor versions may be longer */
    struct {
        struct dl_version version;
        void *previous;
    } header;
    void *allocate, *from_object, *to_object;
    int (*describe)(void *object, struct dl_tensor *tensor); /* 0, or -1 and a Python exception; may be NULL */
    int (*current_stream)(int32_t device_type, int32_t device, void **stream);
};

#endif
