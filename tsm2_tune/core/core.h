/* Choose a kernel for a matrix product from a pack of measured kernels, or leave the product to cuBLAS.

   C (m x n) = alpha A (m x k) B (k x n) + beta C, or a batch of such products. Times are in microseconds; extents,
   leading dimensions, strides and offsets in elements. No function allocates, keeps state, or calls CUDA or Python. An
   open pack is read-only, so any number of threads may use it at once.

   A *pack* is what users know as a kernel table, not the file of trials that `tsm2-tune pack` writes. It is one block
   of bytes: a header and four tables (devices, kernels, times, times of cuBLAS), which begin at multiples of 8 bytes;
   then its texts, each ended by a zero byte. Numbers are little-endian. The block may come from anywhere: core_open
   checks all of it. An `index` without a noun is a kernel's. */

#ifndef TSM2_CORE_H
#define TSM2_CORE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Types of elements. The first six have the numbers of tsm2_type, the C library's enumeration. */
enum core_type {
    CORE_F32,
    CORE_F64,
    CORE_C64,
    CORE_C128,
    CORE_BF16,
    CORE_F16,
    CORE_TF32,
    CORE_3XTF32,
    CORE_MINPLUS_F32,
    CORE_MINPLUS_F64,
    CORE_TYPES
};
enum { CORE_COLUMN_MAJOR, CORE_ROW_MAJOR, CORE_ORDERS };
enum { CORE_A, CORE_B, CORE_C, CORE_MATRICES };
/* What a kernel computes: single products only, or batches only. */
enum core_batched {
    CORE_SINGLE,
    CORE_SHARED, /* `splits` blocks share the products of a batch: it is persistent, and has no workspace */
    CORE_ONE_EACH, /* blockIdx.z is the product's index, and each product has a workspace of its own */
    CORE_BATCHED_KINDS
};

/* --- The pack's tables --- */

#define CORE_MAGIC "TSM2PACK"
enum { CORE_PACK_VERSION = 5 };

struct core_header {
    char magic[8];
    uint32_t version; /* CORE_PACK_VERSION */
    uint32_t device_count, kernel_count, time_count, vendor_time_count, text_bytes;
};

/* A GPU, or a host, on which kernels were measured. Texts are offsets into the pack's texts. */
struct core_device {
    double read_gbytes_per_s;        /* measured; 0: unknown, then no times are predicted */
    double copy_gbytes_per_s;        /* bytes read plus bytes written */
    double gflops[CORE_TYPES];       /* a fused multiply-add counts as two; 0: unknown */
    uint32_t name;                   /* as the driver reports it */
    int32_t multiprocessors;
    int32_t is_host;                 /* kernels are emulated there */
    int32_t unused;
};

/* The rates of a kernel, fitted to its measured times. Without measured times they are assumed. */
struct core_rates {
    double without_vectors; /* factor on the body if the kernel cannot use vectors */
    double arithmetic_rate; /* fraction of the device's arithmetic rate; of a Gram kernel, which computes half, up to 2 */
    double cached_rate; /* rate of rereads, which may hit the L2, in units of CACHED_RATE times the memory rate; also
                           the rate of rewriting C, in units of the memory rate */
};

/* A kernel, and its *own shape*: the shape for which it was exported. A *line* is a column of a column-major matrix,
   or a row of a row-major matrix. A matrix has *unaligned lines* if it has several lines, and the bytes of its leading
   dimension are no multiple of a vector. For a kernel with k_of_vectors, lines are unaligned also if their own bytes are
   no multiple. A kernel *cannot use vectors* for a product if A has unaligned lines for its loads, if C has unaligned
   lines for its stores (B for its loads, if c_vector_bytes is 0), or if k exceeds k_of_vectors. A kernel's *body* is its
   time without the start of the launch and without the addition of partial sums. An extent of 0 is unbounded, unless
   its comment says otherwise. */
struct core_kernel {
    int64_t m, n, k;
    int64_t batch;    /* products at its own shape: 1 if it is CORE_SINGLE, else at least 2 */
    double us;        /* its median time at its own shape */
    double vendor_us; /* the time of cuBLAS at its own shape; 0: not measured, or its result was wrong */

    /* How it divides its work. */
    struct core_rates rates;
    double gain_error; /* times the error_factor of a choice: standard deviation of the error of log(predicted gain).
                          The gain is cuBLAS's time divided by the kernel's */
    int32_t resident; /* occupancy: resident blocks per multiprocessor. 0: unknown; then the choice for a product that
                         it can compute uses no predicted times, not even of other kernels */
    int32_t tile_m; /* rows of a tile of C; a block computes one or more tiles, one below the other */
    int32_t tile_n; /* columns of a tile; 0: n */
    int32_t k_step; /* every split of k but the last is a multiple */
    int32_t k_per_pass; /* k after which C is written, and read again by the next pass */
    int32_t k_of_resident_b; /* largest split of k for which a block keeps its part of B */
    int32_t vector_bytes; /* of its widest loads */
    int32_t k_padding; /* k is padded to a multiple with zeros */
    int32_t n_padding; /* n is padded to a multiple with zeros; 0: to tile_n */
    int32_t is_pipelined; /* a block loads the operands of its next tile of C while it computes a tile */
    int32_t c_vector_bytes; /* of its widest stores to C; 0: it stores elements, and vectors of B count instead */
    int32_t k_of_vectors; /* largest k for which it loads A by vectors: its lanes hold so many elements of a row */

    /* Its launch. */
    int32_t threads, smem_bytes; /* per block */
    int32_t rows_per_block;
    int32_t columns_per_block; /* 0: n */
    int32_t splits; /* slices of k; of a persistent kernel, gridDim.x */
    int32_t flat_splits; /* the most splits whose partial sums are added up at once */
    int32_t is_persistent; /* its grid has `splits` blocks, which share all tiles */
    int32_t has_workspace; /* it has the parameters `partials` and `counters`; some kernels ignore them */
    int32_t batched; /* enum core_batched */
    int32_t stages; /* of a CORE_SHARED kernel: copies of A and B in shared memory; else 0 */
    int32_t is_padded; /* of a CORE_SHARED kernel: lines and matrices of A and B in shared memory are padded */

    uint32_t device; /* index */
    int32_t type; /* enum core_type */
    int32_t orders[CORE_MATRICES];
    int32_t conjugates[2]; /* whether A and B are conjugated */
    int32_t is_gram; /* it computes only products of a matrix and its own transpose */
    uint32_t first_time, time_count; /* times at other shapes */
    uint32_t first_vendor_time, vendor_time_count; /* times of cuBLAS at other shapes, of correct results */
    uint32_t op, configuration, l2_state, entry, vendor_routine; /* texts */
    uint32_t code; /* index of the kernel's CUDA text; kernels with one text share their binaries */
};

/* A time at another shape than the kernel's own, with contiguous matrices that are not shared by products.
   rows_per_block and splits are 0 for cuBLAS. */
struct core_time {
    int64_t m, n, k;
    int64_t batch; /* products: 1 of a kernel that is CORE_SINGLE, else at least 2 */
    double us;
    int32_t rows_per_block, splits;
};

/* --- Opening a pack --- */

struct core_derived; /* facts of a kernel that follow from the pack */
struct core_point; /* a measured time divided by the time from rates, at a shape */

struct core_pack {
    const struct core_header *header;
    const struct core_device *devices;
    const struct core_kernel *kernels;
    const struct core_time *times, *vendor_times;
    const char *texts;
    struct core_derived *derived; /* one for each kernel */
    struct core_point *points; /* for each kernel: one at its own shape, then one for each of its times */
    struct core_point *vendor_points;
};

/* Return the bytes of memory that core_open needs for a pack of these bytes; 0 if the header is wrong. The pack has
   to be aligned to 8 bytes. */
size_t core_memory_bytes(const void *bytes, size_t size);

/* Check the pack, and prepare predictions in `memory`, which is aligned to 8 bytes and has the bytes that
   core_memory_bytes returns. Both blocks must stay where they are for as long as the pack is used. Return NULL, or
   what is wrong with the pack as a constant text. */
const char *core_open(const void *bytes, size_t size, void *memory, struct core_pack *pack);

/* Return the index of the device of this name, or CORE_OTHER_GPU. */
enum { CORE_OTHER_GPU = -1, CORE_HOST = -2 };
int core_device_index(const struct core_pack *pack, const char *name);

static inline const char *core_text(const struct core_pack *pack, uint32_t offset) { return pack->texts + offset; }

/* --- Choosing --- */

/* A matrix product C = A B, or a batch of them. Leading dimensions other than 0 have to be at least the length of a
   line, and matrices of C must not overlap: the core does not check that. It does not know the addresses of the
   matrices either: predictions assume that they are aligned. */
struct core_product {
    int64_t m, n, k;
    int64_t ld[CORE_MATRICES][CORE_ORDERS]; /* leading dimension in each storage order that the matrix has; else 0 */
    int64_t strides[CORE_MATRICES]; /* from a matrix to that of the next product. 0: all products share it, A or B */
    int64_t batch_count; /* products; 1: then the strides do not count */
    int32_t type; /* enum core_type */
    int32_t conjugates[2];
    int32_t is_gram; /* B is A transposed, in the same memory */
    int32_t makes_c; /* C is allocated after the choice, in the kernel's order, and ld[CORE_C] is ignored. Kernels with
                        a column-major C are preferred, unless m or n is 1 */
    int32_t leaves_out_shape; /* leave-one-out: kernels and times of this shape (m, n, k and batch_count) and of its
                                 transpose (n, m, k) are not used */
};

/* Return whether B is A transposed, in the same memory, if A and B have one address. */
int core_is_gram(const struct core_product *product);

/* How the products of a batch make up one product, because A or B is the same for all. */
enum core_merged {
    CORE_APART,
    CORE_ROWS, /* the rows of A and C follow one another: m of the one product is the sum of all m */
    CORE_COLUMNS /* the columns of B and C do: n is the sum of all n */
};

/* Return the batch as one product, if its products make up one in this way; else the batch itself. This is the only
   place that decides it. */
struct core_product core_merged_product(const struct core_product *product, enum core_merged merged);

/* Return the transposed product, C^T = B^T A^T, in the same memory. */
struct core_product core_transposed_product(const struct core_product *product);

enum core_reason {
    CORE_NO_KERNEL, /* no kernel computes it: by its type, orders, conjugates, number of products or shared memory */
    CORE_TUNED, /* the kernel was tuned for this shape and number of products, and uses vectors as it did there */
    CORE_PREDICTED, /* the kernel has the least predicted time */
    CORE_NEAREST /* no times can be predicted, and the kernel's own shape is the nearest */
};

/* The kernel for a product and its launch. Without a kernel all is 0. */
struct core_choice {
    enum core_reason reason;
    int32_t kernel; /* its index in the pack */
    int32_t is_vendors; /* cuBLAS should compute the product: it is faster, or the predicted gain is too uncertain */
    int32_t is_transposed; /* the kernel computes C^T = B^T A^T */
    int32_t is_of_other_device;
    int32_t is_too_large; /* grid and workspace are 0: the grid exceeds CUDA's limits, or the workspace 2**62 bytes */
    int32_t merged; /* enum core_merged: whether the kernel computes the batch as one product */
    int32_t index_bits; /* 32 or 64: the width of the kernel's integer parameters */
    int32_t rows_per_block, splits;
    uint32_t grid[3]; /* blocks in x, y and z */
    uint64_t partials_bytes, counters_bytes; /* workspace of all products; counters are 32-bit and must be 0 */
    uint64_t partials_stride, counters_stride; /* from a product's workspace to the next's; in sums and counters */
    int64_t extents[3]; /* m, n and k of the product that the kernel computes: transposed if is_transposed */
    int64_t ld[CORE_MATRICES]; /* the leading dimensions of its A, B and C */
    int64_t strides[CORE_MATRICES]; /* of its A, B and C; those of a C that is allocated later are contiguous */
    int64_t batch_count; /* products that the kernel computes */
    int64_t measured[3]; /* m, n and k of the kernel's measured shape that is nearest to the product's */
    int64_t measured_batch; /* its number of products */
    double measured_us; /* its time there */
    double distance; /* Euclidean distance of the logarithms of extents and products from the measured ones */
    double error_factor; /* of the predicted gain, see gain_error; 0: no gain is predicted */
    double us, vendor_us; /* measured if CORE_TUNED, else predicted; 0: unknown, and always on a host */
};

/* Return the kernel for the product. If a batch is one product (enum core_merged) and a kernel computes that, the
   result is this kernel. `device` is an index, CORE_OTHER_GPU or CORE_HOST. All candidates are of one device: this
   one, or the first GPU in the pack that has a kernel for the product or for the transposed product if this one has
   none. */
struct core_choice core_choose(const struct core_pack *pack, const struct core_product *product, int device);

/* Return the largest gain_error with which a kernel, not cuBLAS, computes a product with this choice at a shape that was
   not tuned. */
double core_largest_gain_error(const struct core_choice *choice);

/* Set `found` to the launches that are worth timing for a product whose C exists (makes_c is 0). The first is the
   choice of core_choose. The others follow in the order of their predicted times: the two fastest launches of each
   candidate, for the product and for the transposed product. They are dropped if is_too_large, or if they are
   predicted to take more than WORTH_TIMING times the least time. Of launches after the first, vendor_us,
   error_factor and is_vendors are 0. Return the number of launches, at most `room`, which is at least 1; 0 without a
   kernel. On a host only the first is set. */
int core_contenders(const struct core_pack *pack, const struct core_product *product, int device,
                    struct core_choice *found, int room);

/* Set `ld` and `index_bits` of a choice for another product, which differs from the choice's product only in leading
   dimensions. The widest vector that divides a leading dimension must be the same in both products, since the choice
   depends on unaligned lines. */
void core_set_leading_dimensions(const struct core_pack *pack, const struct core_product *product,
                                 struct core_choice *choice);

/* Return the predicted time of a kernel for a product that it can compute, with its best launch; 0 if
   it cannot be predicted. Set `penalized_us` to the time with a penalty for the distance from measured shapes. */
double core_predict(const struct core_pack *pack, int index, const struct core_product *product,
                    int32_t *rows_per_block, int32_t *splits, double *penalized_us);

/* Set us[i] to the time predicted for the shape and launch of times[i], from the device's rates and the kernel's fitted
   rates, without its measured times. times[i].us is not read. Matrices are contiguous. 0: it cannot be predicted. */
void core_rates_us(const struct core_pack *pack, int index, const struct core_time *times, int count, double *us);

/* Set us[j * count + i] to the time that core_rates_us would predict for times[i] if the kernel had rates[j]. */
void core_us_by_rates(const struct core_pack *pack, int index, const struct core_time *times, int count,
                      const struct core_rates *rates, int rates_count, double *us);

/* Resident blocks per multiprocessor with which latency limits a kernel as much as a rate does: the memory rate, and the
   arithmetic rate. */
struct core_balance_blocks {
    double memory, arithmetic;
};

/* Set us[i] to the predicted time of kernels[i], which has no measured times, for a product with its own shape and
   launch. Infinite: it cannot be predicted. For measured kernels, the own shape says how many blocks reach the rates of
   the device, devices[kernels[i].device]. Here they are balance_blocks[i] / ENOUGH_BLOCKS, at most `resident`. The
   caller has checked the records. The function reads these members of a kernel: m, n, k, batch, how it divides its
   work, rows_per_block, columns_per_block, splits, is_persistent, has_workspace, batched, device, type, orders and
   is_gram. */
void core_unmeasured_us(const struct core_device *devices, const struct core_kernel *kernels,
                        const struct core_balance_blocks *balance_blocks, int count, double *us);

/* Write a sentence about the choice to `text`, at most `bytes` with the terminating zero. `device` is the name of the
   GPU for which the kernel was chosen. */
void core_explain(const struct core_pack *pack, const struct core_choice *choice, const char *device, char *text,
                  size_t bytes);

/* Return the bytes of an element; of a partial sum, alpha or beta. */
int64_t core_element_bytes(int type);
int64_t core_sum_bytes(int type);

#ifdef __cplusplus
}
#endif
#endif
