/* The library's data: winners and the binaries of their kernels. The export writes pack.c. */

#ifndef TSM2_PACK_H
#define TSM2_PACK_H

#include <stdint.h>

enum { INDEX_WIDTHS = 2 };                         /* 32 and 64 bits, in this order */
#define LARGEST_32_BIT_OFFSET 2143289344           /* elements: 2**31 - 2**22; past it an index has 64 bits */
enum { COLUMN_MAJOR = 0, ROW_MAJOR = 1, ORDERS = 2 };

/* A kernel's launch for any shape: see launch.h. */
struct launch {
    int threads;           /* per block */
    int rows_per_block;    /* rows of C that a block computes */
    int smem_bytes;        /* dynamic shared memory per block */
    int columns_per_block; /* columns of C that a block computes; 0: n */
    int splits;            /* of k */
    int flat_splits;       /* the most splits whose sums are added up at once */
    int persistent;        /* the grid has `splits` blocks */
    int has_workspace;     /* the kernel has the parameters `partials` and `counters` */
};

/* How a kernel divides its work, independent of the shape. */
struct division {
    int resident;     /* resident blocks per multiprocessor; 0: unknown */
    int tile_rows;    /* of C; a block computes a whole number of tiles, one below the other */
    int tile_columns; /* of C; 0: n */
    int step;         /* of k; each part of k but the last is a multiple; 0: k is not split */
    int deepest;      /* extent of k after which C is written, and then read again for the next part; 0: k */
    double odd_lines; /* factor on the body if lines of operands are not whole vectors */
    int longest;      /* largest part of k for which a block keeps its part of B; 0: any */
    double arithmetic_rate; /* share of the card's arithmetic rate */
    double cached_rate;     /* of the memory's rate, for lines that are reread and may be in the L2 */
    int vector_bytes; /* of its widest loads; other lines than multiples are odd */
    int depth;        /* k is padded to a multiple with zeros */
    int width;        /* n is padded to a multiple with zeros; 0: to a tile */
    int flows;        /* loads for the next tile of C are in flight while a block computes one */
    int vectors_of_c; /* vectors are of A and C, else of A and B; odd lines are counted there */
};

/* The measured rates of the GPU on which kernels were tuned. */
struct card {
    int sms;
    double read_gbytes_per_s, copy_gbytes_per_s;
    double gflops[6]; /* by tsm2_type; 0: not known */
};

/* The fastest kernel of one shape and op on one device. */
struct winner {
    const char *device, *op, *config;
    const char *cache; /* state of the L2 for its times: clean, dirty or warm */
    int type;          /* a tsm2_type */
    int orders[3];     /* of A, B and C as matrices of the kernel's product */
    int conjugates[2]; /* whether A and B are conjugated */
    int is_gram;       /* whether it is only for a matrix and its own transpose */
    int64_t m, n, k;
    double median_us;
    const char *vendor_routine; /* NULL if it was not timed, or its result not right */
    double vendor_us;
    int kernel; /* index of its text; the binaries of one text share it */
    const char *entry;
    struct launch launch;
    int card; /* index; -1: unknown, so there are no predictions */
    struct division division;
    /* Where it won: resident blocks per multiprocessor, weighted by how full their tiles were; the same of a
       multiprocessor that has any; and blocks per multiprocessor if all were resident and had several tiles, else 0. */
    double at_work, busy, waves_won;
    int first_vendor_point, vendor_point_count; /* the vendor's right times there and nearby */
    int first_point, point_count;               /* the kernel's times there and elsewhere */
};

/* A measured time of a kernel or of the vendor at a shape. */
struct point {
    double log_m, log_n, log_k;
    double has_odd_lines; /* 1 if lines are not whole vectors of the kernel; for the vendor, of 16 bytes in A or B */
    double expected_us;   /* predicted from the card's rates */
    double log_ratio;     /* of the measured time to expected_us */
};

struct cubin {
    int kernel, width; /* index of its text; index width, 0 for 32 and 1 for 64 bits */
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
