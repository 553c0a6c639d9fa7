/* The library's data. The export writes library_pack.c: a pack for the core, and the binaries of its kernels. */

#ifndef TSM2_PACK_H
#define TSM2_PACK_H

#include <stdint.h>

enum { INDEX_WIDTHS = 2 }; /* 32 and 64 bits, in this order */

struct cubin {
    int code, width; /* index of the CUDA text, as core_kernel's; index width, 0 for 32 and 1 for 64 bits */
    const char *architecture;
    uint64_t offset, bytes; /* in pack_cubin_bytes */
    unsigned char sha256[32];
};

extern const unsigned char pack_core_bytes[]; /* for core_open */
extern const uint64_t pack_core_size;
extern const struct cubin pack_cubins[];
extern const int pack_cubin_count;
extern const unsigned char pack_cubin_bytes[];
extern const char pack_about[];

#endif
