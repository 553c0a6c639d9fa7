#include "sha256.h"

#include <stdint.h>
#include <string.h>

enum { BLOCK = 64, ROUNDS = 64 };

/* The first 32 bits of the fractions of the cube roots of the first 64 primes. */
static const uint32_t constants[ROUNDS] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t rotated(uint32_t x, int bits) { return x >> bits | x << (32 - bits); }

static uint32_t word_at(const unsigned char *bytes)
{
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

static void add_block(uint32_t state[8], const unsigned char block[BLOCK])
{
    uint32_t w[ROUNDS], s[8];
    for (int t = 0; t < 16; ++t)
        w[t] = word_at(block + 4 * t);
    for (int t = 16; t < ROUNDS; ++t) {
        const uint32_t a = w[t - 15], b = w[t - 2];
        w[t] = w[t - 16] + (rotated(a, 7) ^ rotated(a, 18) ^ a >> 3) + w[t - 7] +
               (rotated(b, 17) ^ rotated(b, 19) ^ b >> 10);
    }
    memcpy(s, state, sizeof s);
    for (int t = 0; t < ROUNDS; ++t) {
        const uint32_t a = s[0], e = s[4];
        const uint32_t first = s[7] + (rotated(e, 6) ^ rotated(e, 11) ^ rotated(e, 25)) +
                               ((e & s[5]) ^ (~e & s[6])) + constants[t] + w[t];
        const uint32_t second =
            (rotated(a, 2) ^ rotated(a, 13) ^ rotated(a, 22)) + ((a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]));
        memmove(s + 1, s, 7 * sizeof *s);
        s[4] += first;
        s[0] = first + second;
    }
    for (int i = 0; i < 8; ++i)
        state[i] += s[i];
}

void sha256(const unsigned char *bytes, size_t count, unsigned char digest[32])
{
    /* The same of the square roots of the first 8 primes. */
    uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    unsigned char tail[2 * BLOCK] = {0};
    const size_t whole = count / BLOCK * BLOCK, rest = count - whole, padded = rest < BLOCK - 8 ? BLOCK : 2 * BLOCK;
    for (size_t at = 0; at < whole; at += BLOCK)
        add_block(state, bytes + at);
    memcpy(tail, bytes + whole, rest);
    tail[rest] = 0x80;
    for (int i = 0; i < 8; ++i)
        tail[padded - 1 - (size_t)i] = (unsigned char)((uint64_t)count * 8 >> 8 * i);
    for (size_t at = 0; at < padded; at += BLOCK)
        add_block(state, tail + at);
    for (int i = 0; i < 32; ++i)
        digest[i] = (unsigned char)(state[i / 4] >> (24 - i % 4 * 8));
}
