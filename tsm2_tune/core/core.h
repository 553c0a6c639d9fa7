/* Choose a kernel for a matrix product from a pack of measured kernels, or leave the product to cuBLAS.

   C (m x n) = alpha A (m x k) B (k x n) + beta C. Times are in microseconds; extents, leading dimensions and offsets in
   elements. No function allocates, keeps state, or calls CUDA or Python. An open pack is read-only, so any number of
   threads may use it at once.

   A pack is one block of bytes: a header and four tables (devices, kernels, times, times of cuBLAS), which begin at
   multiples of 8 bytes; then its texts, each ended by a zero byte. Numbers are little-endian. The block may come from
   anywhere: core_open checks all of it. */

#ifndef TSM2_CORE_H
#define TSM2_CORE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum core_type {
    CORE_F32,
    CORE_F64,
    CORE_C64,
    CORE_C128,
    CORE_BF16,
    CORE_F16, /* as tsm2_type */
    CORE_TF32,
    CORE_3XTF32,
    CORE_MINPLUS_F32,
    CORE_MINPLUS_F64,
    CORE_TYPES
};
enum { CORE_COLUMN_MAJOR, CORE_ROW_MAJOR, CORE_ORDERS };
enum { CORE_A, CORE_B, CORE_C, CORE_MATRICES };

/* --- The pack's tables --- */

#define CORE_MAGIC "TSM2PACK"
enum { CORE_PACK_VERSION = 1 };

struct core_header {
    char magic[8];
    uint32_t version; /* CORE_PACK_VERSION */
    uint32_t device_count, kernel_count, time_count, vendor_time_count, text_bytes;
};

/* A GPU, or a host, on which kernels were measured. Texts are offsets into the pack's texts. */
struct core_device {
    double read_gbytes_per_s;        /* measured; 0: rates are unknown, and no times are predicted */
    double copy_gbytes_per_s;        /* bytes read plus bytes written */
    double gflops[CORE_TYPES];       /* a fused multiply-add counts as two; 0: unknown */
    uint32_t name;                   /* as the driver reports it */
    int32_t multiprocessors;
    int32_t is_host;                 /* kernels are emulated there */
    int32_t unused;
};

/* A kernel at the shape for which it is in the pack. */
struct core_kernel {
    int64_t m, n, k;
    double us;        /* its median time there */
    double vendor_us; /* the time of cuBLAS there; 0: not measured, or its result was wrong */

    /* How it divides its work; `resident` 0: unknown, and no times are predicted if it is among the kernels that fit.
     */
    double odd_lines; /* factor on the body's time if lines of matrices are not whole vectors */
    double arithmetic_rate; /* share of the device's arithmetic rate */
    double cached_rate; /* rate of data that is read again and may be in the L2, and of C; 1: typical */
    int32_t resident; /* resident blocks per multiprocessor */
    int32_t tile_m; /* rows of a tile of C; a block computes whole tiles, one below the other */
    int32_t tile_n; /* columns of a tile; 0: n */
    int32_t k_step; /* splits of k are multiples, except the last; 0: k is not split */
    int32_t k_per_pass; /* k after which C is written, and read again by the next pass; 0: k */
    int32_t k_of_resident_b; /* largest split of k for which a block keeps its part of B; 0: any */
    int32_t vector_bytes; /* of its widest loads */
    int32_t k_padding; /* k is padded to a multiple with zeros */
    int32_t n_padding; /* n is padded to a multiple with zeros; 0: to tile_n */
    int32_t is_pipelined; /* a block loads its next tile of C while it computes one */
    int32_t has_vectors_of_c; /* its vectors are of A and C, else of A and B */

    /* Its launch. */
    int32_t threads, smem_bytes; /* per block */
    int32_t rows_per_block;
    int32_t columns_per_block; /* 0: n */
    int32_t splits; /* of k; blocks of the grid if it is persistent */
    int32_t flat_splits; /* the most splits whose partial sums are added up at once */
    int32_t is_persistent; /* its grid has `splits` blocks, which share all tiles */
    int32_t has_workspace; /* it has the parameters `partials` and `counters`; some kernels ignore them */

    uint32_t device; /* index */
    int32_t type; /* enum core_type */
    int32_t orders[CORE_MATRICES];
    int32_t conjugates[2]; /* whether A and B are conjugated */
    int32_t is_gram; /* it computes only products of a matrix and its own transpose */
    uint32_t first_time, time_count; /* times at other shapes */
    uint32_t first_vendor_time, vendor_time_count; /* times of cuBLAS at other shapes, of correct results */
    uint32_t op, configuration, l2_state, entry, vendor_routine; /* texts */
    uint32_t code; /* index of the kernel's CUDA text; kernels with one text share their binaries */
    uint32_t unused;
};

/* A time at another shape than the kernel's. rows_per_block and splits are 0 for cuBLAS. */
struct core_time {
    int64_t m, n, k;
    double us;
    int32_t rows_per_block, splits;
};

/* --- Opening a pack --- */

struct core_fit; /* a kernel's derived facts */
struct core_point; /* a measured time over the predicted one, at a shape */

struct core_pack {
    const struct core_header *header;
    const struct core_device *devices;
    const struct core_kernel *kernels;
    const struct core_time *times, *vendor_times;
    const char *texts;
    struct core_fit *fits; /* of each kernel */
    struct core_point *points; /* of each kernel: at its shape, then its times */
    struct core_point *vendor_points;
};

/* Return the bytes of memory that core_open needs for a pack of these bytes; 0 if the header is wrong. The pack has to
   be aligned to 8 bytes. */
size_t core_memory_bytes(const void *bytes, size_t size);

/* Check the pack, and prepare predictions in `memory`, which is aligned to 8 bytes and has the bytes that
   core_memory_bytes returns. Both blocks must stay where they are for as long as the pack is used. Return NULL, or what
   is wrong with the pack as a constant text. */
const char *core_open(const void *bytes, size_t size, void *memory, struct core_pack *pack);

/* Return the index of the device of this name, or CORE_OTHER_GPU. */
enum { CORE_OTHER_GPU = -1, CORE_HOST = -2 };
int core_device_index(const struct core_pack *pack, const char *name);

static inline const char *core_text(const struct core_pack *pack, uint32_t offset) { return pack->texts + offset; }

/* --- Choosing --- */

/* C = A B. Leading dimensions that are not 0 have to be at least the length of a line: the core does not check them. */
struct core_product {
    int64_t m, n, k;
    int64_t ld[CORE_MATRICES][CORE_ORDERS]; /* leading dimension in each storage order that the matrix has; else 0 */
    int64_t batch_count; /* 1, until kernels compute batches */
    int32_t type; /* enum core_type */
    int32_t conjugates[2];
    int32_t is_gram; /* B is A transposed, in the same memory */
    int32_t makes_c; /* C is allocated after the choice: column-major if there is a kernel for that. ld[CORE_C] is
                        ignored */
};

enum core_reason {
    CORE_NO_KERNEL, /* no kernel has this type, these orders and conjugates */
    CORE_TUNED, /* the kernel was tuned for this shape */
    CORE_PREDICTED, /* it has the least predicted time */
    CORE_NEAREST, /* no times can be predicted: its shape is the nearest */
    CORE_TIMED /* only for core_explain: the caller timed this launch on the product's own arrays */
};

/* The kernel for a product and its launch. Without a kernel all is 0. */
struct core_choice {
    enum core_reason reason;
    int32_t kernel; /* index */
    int32_t is_vendors; /* cuBLAS is faster, or predicted to be nearly as fast */
    int32_t is_transposed; /* the kernel computes C^T = B^T A^T */
    int32_t is_of_other_device;
    int32_t is_too_large; /* the grid or the workspace would exceed what CUDA has; both are 0 */
    int32_t index_bits; /* 32 or 64: the width of the kernel's integer parameters */
    int32_t rows_per_block, splits;
    uint32_t grid[2]; /* blocks in x and y */
    uint64_t partials_bytes, counters_bytes; /* workspace; counters are 32-bit and must be 0 */
    int64_t extents[3]; /* m, n and k as the kernel computes it */
    int64_t ld[CORE_MATRICES]; /* the leading dimensions of its A, B and C */
    int64_t measured[3]; /* m, n and k of the kernel's measured shape that is nearest to the product's */
    double measured_us; /* its time there */
    double distance; /* Euclidean distance of the logarithms of m, n and k to that shape */
    double us, vendor_us; /* measured if CORE_TUNED, else predicted; 0: unknown */
};

/* Return the kernel for the product on the device: an index, CORE_OTHER_GPU or CORE_HOST. If no
   kernel of the device fits the product as it is, kernels of another GPU are chosen. */
struct core_choice core_choose(const struct core_pack *pack, const struct core_product *product, int device);

/* Set `found` to the launches that are worth timing for a product whose C exists (makes_c is 0). The first is that of
   core_choose; the others follow by their predicted times, at most twice the least one. Return how many there are, at
   most `room`, which is at least 1; 0 without a kernel. */
int core_contenders(const struct core_pack *pack, const struct core_product *product, int device,
                    struct core_choice *found, int room);

/* Set `ld` and `index_bits` of a choice for another product. That product may differ from the choice's
   only in leading dimensions. For each of them, the widest vector that divides it must be the same. */
void core_set_leading_dimensions(const struct core_pack *pack, const struct core_product *product,
                                 struct core_choice *choice);

/* Return the predicted time of a kernel for a product that fits it, with its best launch. 0: it cannot be predicted.
   `penalized_us` is the time with a penalty for the distance from measured shapes. */
double core_predict(const struct core_pack *pack, int kernel, const struct core_product *product,
                    int32_t *rows_per_block, int32_t *splits, double *penalized_us);

/* Predict a kernel's times at shapes and with launches from the device's rates alone, without its measured times; 0: they
   cannot be predicted. The members `us` of `times` are not read. Set `count` predictions in microseconds. */
void core_rates_us(const struct core_pack *pack, int kernel, const struct core_time *times, int count, double *us);

/* Write the choice as a sentence of at most `bytes`, including the terminating zero. `device` is the name of the GPU
 * asked for. */
void core_explain(const struct core_pack *pack, const struct core_choice *choice, const char *device, char *text,
                  size_t bytes);

/* Return the bytes of an element, and of a sum, alpha or beta. */
int64_t core_element_bytes(int type);
int64_t core_sum_bytes(int type);

#ifdef __cplusplus
}
#endif
#endif
