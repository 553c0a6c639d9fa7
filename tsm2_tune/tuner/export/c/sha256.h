/* SHA-256, as FIPS 180-4 has it. */

#ifndef TSM2_SHA256_H
#define TSM2_SHA256_H

#include <stddef.h>

void sha256(const unsigned char *bytes, size_t count, unsigned char digest[32]);

#endif
