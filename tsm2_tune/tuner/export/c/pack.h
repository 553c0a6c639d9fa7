/* What the library holds: the winners, and the binaries of their kernels. `pack.c` is written by the export. */

#ifndef TSM2_PACK_H
#define TSM2_PACK_H

#include <stdint.h>

enum { INDEX_WIDTHS = 2 };                         /* 32 and 64 bits, in this order */
#define LARGEST_32_BIT_OFFSET 2143289344           /* elements: 2**31 - 2**22; past it an index has 64 bits */
enum { COLUMN_MAJOR = 0, ROW_MAJOR = 1, ORDERS = 2 };

/* How a kernel is started for any shape: see launch.h. */
struct launch {
    int threads;           /* per block */
    int rows_per_block;    /* of C's tiles */
    int smem_bytes;        /* dynamic shared memory per block */
    int columns_per_block; /* of C's tiles; 0: all n */
    int splits;            /* of k */
    int flat_splits;       /* the most whose sums are added up at once */
    int persistent;        /* whether `splits` blocks are all of the grid */
    int has_workspace;     /* whether the kernel has the two parameters more */
};

/* Into what a kernel divides its work, whatever the shape. */
struct division {
    int resident;     /* blocks that a multiprocessor holds at a time; 0: not known */
    int tile_rows;    /* of C; a block computes a whole number of such tiles, one below the other */
    int tile_columns; /* of C; 0: all of them */
    int step;         /* products of a sum; every part of k but the last is a multiple; 0: k has no parts */
    int deepest;      /* products of a sum after which C is written, to be read and written again; 0: all */
    double odd_lines; /* how much longer it takes where lines of operands are not whole vectors */
    int longest;      /* products of the longest part of k for which a block keeps its part of B; 0: any */
    double arithmetic_rate; /* of the card's, at which it multiplies */
    double cached_rate;     /* of the memory's, at which it reads lines again that may be in the L2 */
    int vector_bytes; /* lines that are whole vectors of so many bytes are not odd to it */
    int depth;        /* products of a sum that are multiplied as a whole, with zeros behind the last */
    int width;        /* columns of C that are multiplied as a whole, with zeros behind the last; 0: of a tile */
    int flows;        /* while a block computes a tile of C, loads of the next are on their way */
    int vectors_of_c; /* it has vectors of A and C, else of A and B: so whose lines may be odd */
};

/* A GPU's rates, as they were measured where its kernels were tuned. */
struct card {
    int sms;
    double read_gbytes_per_s, copy_gbytes_per_s;
    double gflops[6]; /* by tsm2_type; 0: not known */
};

/* The fastest kernel of one shape and op on one device. */
struct winner {
    const char *device, *op, *config;
    const char *cache; /* the state of the L2 in which its times were taken */
    int type;          /* a tsm2_type */
    int orders[3];     /* of A, B and C as matrices of the kernel's product */
    int conjugates[2]; /* whether it multiplies with the complex conjugate of A, and of B */
    int is_gram;       /* whether it is for a matrix and the same one transposed alone */
    int64_t m, n, k;
    double median_us;
    const char *vendor_routine; /* NULL where it was not measured, or not right */
    double vendor_us;
    int kernel; /* index of its text: binaries of one text have the same */
    const char *entry;
    struct launch launch;
    int card; /* index; -1: not known, so that nothing is expected of other shapes */
    struct division division;
    /* Of where it won: how many blocks a multiprocessor had at a time, as far as tiles were filled, and one that had
       some; blocks on a multiprocessor of a kernel whose blocks have several tiles and all ran at once, else 0. */
    double at_work, busy, waves_won;
    int first_vendor_point, vendor_point_count; /* of what the vendor took beside it and around there, right */
    int first_point, point_count;               /* of what the kernel took, there and elsewhere */
};

/* A shape where a time was measured, of a kernel or of the vendor. */
struct point {
    double log_m, log_n, log_k;
    double has_odd_lines; /* lines are not whole vectors: the kernel's; of the vendor's A or B, of 16 bytes */
    double expected_us;   /* what the card's rates let expect */
    double log_ratio;     /* of the measured time to that */
};

struct cubin {
    int kernel, width; /* of its text; of its index, 0 for 32 and 1 for 64 bits */
    const char *architecture;
    uint64_t offset, bytes; /* in pack_bytes */
    unsigned char sha256[32];
};

extern const struct winner pack_winners[];
extern const int pack_winner_count;
extern const struct card pack_cards[];
extern const struct point pack_points[];
extern const struct cubin pack_cubins[];
extern const int pack_cubin_count;
extern const unsigned char pack_bytes[];
extern const char pack_about[];

#endif
