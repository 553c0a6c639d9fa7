/* Check a pack, and prepare it for choices. */

#include "model.h"

#include <limits.h>
#include <math.h>
#include <string.h>

/* Sizes that a pack's writer relies on. */
typedef char size_t_has_64_bits[sizeof(size_t) == 8 ? 1 : -1]; /* so that the sums of read_layout do not wrap */
typedef char header_is_32_bytes[sizeof(struct core_header) == 32 ? 1 : -1];
typedef char device_is_112_bytes[sizeof(struct core_device) == 112 ? 1 : -1];
typedef char kernel_is_248_bytes[sizeof(struct core_kernel) == 248 ? 1 : -1];
typedef char time_is_48_bytes[sizeof(struct core_time) == 48 ? 1 : -1];

/* Bounds of CUDA, and of what a device may be. They keep arithmetic on a pack's numbers in range. */
enum {
    MOST_THREADS = 1024,
    MOST_SMEM_BYTES = 227 << 10, /* of a block at compute capability 9.0 and 10.0, the largest */
    MOST_DEVICES = 64,
    MOST_MULTIPROCESSORS = 1 << 16,
    MOST_RESIDENT = 64,
    MOST_STAGES = 16,
};
enum { MOST_RECORDS = 1 << 24 }; /* of one table */
#define LARGEST_EXTENT 0x1p62
#define LEAST_NUMBER 1e-9
#define LARGEST_NUMBER 1e12

/* Where each part of a pack begins. */
struct layout {
    size_t devices, kernels, times, vendor_times, texts, end; /* bytes from the header */
};

static int read_layout(const void *bytes, size_t size, struct layout *layout)
{
    const struct core_header *header = (const struct core_header *)bytes;
    if ((uintptr_t)bytes % sizeof(int64_t) != 0 || size < sizeof *header ||
        memcmp(header->magic, CORE_MAGIC, sizeof header->magic) != 0 || header->version != CORE_PACK_VERSION ||
        header->device_count > MOST_RECORDS || header->kernel_count > MOST_RECORDS ||
        header->time_count > MOST_RECORDS || header->vendor_time_count > MOST_RECORDS)
        return 0;
    layout->devices = sizeof *header;
    layout->kernels = layout->devices + header->device_count * sizeof(struct core_device);
    layout->times = layout->kernels + header->kernel_count * sizeof(struct core_kernel);
    layout->vendor_times = layout->times + header->time_count * sizeof(struct core_time);
    layout->texts = layout->vendor_times + header->vendor_time_count * sizeof(struct core_time);
    layout->end = layout->texts + header->text_bytes;
    return layout->end == size;
}

size_t core_memory_bytes(const void *bytes, size_t size)
{
    struct layout layout;
    if (!read_layout(bytes, size, &layout))
        return 0;
    const struct core_header *header = (const struct core_header *)bytes;
    const size_t points = 2 * (size_t)header->kernel_count + header->time_count + header->vendor_time_count;
    /* 8 bytes more, so that a pack without kernels needs memory too. */
    return header->kernel_count * sizeof(struct core_derived) + points * sizeof(struct core_point) + 8;
}

static int is_in(double number, double least, double most) { return number >= least && number <= most; }
static int is_flag(int32_t number) { return number == 0 || number == 1; }
static int is_extent(int64_t extent) { return extent >= 1 && (double)extent <= LARGEST_EXTENT; }
static int is_batch(int64_t batch) { return batch >= 1 && batch <= INT_MAX; }
static int is_rate(double rate) { return rate == 0 || is_in(rate, LEAST_NUMBER, LARGEST_NUMBER); }
static int is_vector(int32_t bytes) { return bytes >= 1 && VECTOR_BYTES % bytes == 0; }
static int is_time(double us) { return is_in(us, LEAST_NUMBER, LARGEST_NUMBER); }

/* Return whether the offset is within the texts. The last byte is 0, so a text from there ends. */
static int is_text(const struct core_pack *pack, uint32_t offset) { return offset < pack->header->text_bytes; }

static const char *device_fault(const struct core_pack *pack, const struct core_device *device)
{
    int are_rates = is_rate(device->read_gbytes_per_s) && is_rate(device->copy_gbytes_per_s) &&
                    (device->copy_gbytes_per_s > 0) == (device->read_gbytes_per_s > 0);
    for (int type = 0; type < CORE_TYPES; ++type)
        are_rates &= is_rate(device->gflops[type]);
    if (!are_rates)
        return "a device's rate is out of range";
    if (device->multiprocessors < 1 || device->multiprocessors > MOST_MULTIPROCESSORS)
        return "a device's number of multiprocessors is out of range";
    if (!is_flag(device->is_host))
        return "a device's is_host is neither 0 nor 1";
    return is_text(pack, device->name) ? NULL : "a device has no name";
}

static const char *tiling_fault(const struct core_kernel *kernel)
{
    const int32_t extents[] = {kernel->tile_n, kernel->k_step, kernel->k_per_pass, kernel->k_of_resident_b,
                               kernel->n_padding, kernel->k_of_vectors};
    for (size_t i = 0; i < sizeof extents / sizeof *extents; ++i)
        if (extents[i] < 0)
            return "an extent of a kernel's tile is negative";
    if (kernel->resident < 0 || kernel->resident > MOST_RESIDENT)
        return "a kernel's number of resident blocks is out of range";
    if (kernel->tile_m < 1 || kernel->tile_m > MOST_ROWS || kernel->k_padding < 1)
        return "a kernel's tile is out of range";
    if (!is_vector(kernel->vector_bytes))
        return "the bytes of a kernel's vectors are out of range";
    if (kernel->c_vector_bytes != 0 && !is_vector(kernel->c_vector_bytes))
        return "the bytes of a kernel's vectors of C are out of range";
    if (!is_flag(kernel->is_pipelined))
        return "a flag of a kernel's tile is neither 0 nor 1";
    if (!is_in(kernel->rates.without_vectors, 1e-3, 1e3) || !is_in(kernel->rates.arithmetic_rate, 1e-3, 1e3) ||
        !is_in(kernel->rates.cached_rate, 1e-3, 1e3))
        return "a kernel's rate is out of range";
    if (!is_in(kernel->gain_error, 0, LARGEST_NUMBER))
        return "the error of a kernel's predicted gains is out of range";
    return NULL;
}

static const char *launch_fault(const struct core_kernel *kernel)
{
    if (kernel->threads < 1 || kernel->threads > MOST_THREADS)
        return "a kernel's number of threads is out of range";
    if (kernel->smem_bytes < 0 || kernel->smem_bytes > MOST_SMEM_BYTES)
        return "a kernel's shared memory is out of range";
    if (kernel->rows_per_block < 1 || kernel->rows_per_block > MOST_ROWS || kernel->columns_per_block < 0 ||
        kernel->splits < 1 || (!kernel->is_persistent && kernel->splits > MOST_SPLITS) || kernel->flat_splits < 0)
        return "a kernel's launch is out of range";
    if (!is_flag(kernel->is_persistent) || !is_flag(kernel->has_workspace))
        return "a flag of a kernel's launch is neither 0 nor 1";
    if (kernel->splits > 1 && !kernel->has_workspace && kernel->batched != CORE_SHARED)
        return "a kernel with splits has no workspace";
    return NULL;
}

/* Return whether the kernel is measured for as many products. */
static int is_batch_of(const struct core_kernel *kernel, int64_t batch)
{
    return is_batch(batch) && (batch > 1) == (kernel->batched != CORE_SINGLE) &&
           (kernel->batched != CORE_ONE_EACH || batch <= MOST_ONE_EACH);
}

static const char *batch_fault(const struct core_kernel *kernel)
{
    const int is_shared = kernel->batched == CORE_SHARED;
    if (kernel->batched < 0 || kernel->batched >= CORE_BATCHED_KINDS || !is_batch_of(kernel, kernel->batch))
        return "a kernel's batch is out of range";
    if (is_shared && (!kernel->is_persistent || kernel->has_workspace))
        return "a kernel whose blocks share a batch is not persistent, or has a workspace";
    if (kernel->stages < is_shared || kernel->stages > is_shared * MOST_STAGES || kernel->is_padded < 0 ||
        kernel->is_padded > is_shared || !fits_shared_memory(kernel, kernel->m, kernel->n, kernel->k))
        return "the shared memory of a kernel of batches is out of range";
    return NULL;
}

static const char *times_fault(const struct core_time *times, uint32_t count, int is_vendors)
{
    for (uint32_t i = 0; i < count; ++i) {
        const struct core_time *time = &times[i];
        if (!is_extent(time->m) || !is_extent(time->n) || !is_extent(time->k))
            return "the shape of a measured time is out of range";
        if (!is_batch(time->batch))
            return "the batch of a measured time is out of range";
        if (!is_time(time->us))
            return "a measured time is out of range";
        if (!is_vendors && (time->rows_per_block < 1 || time->rows_per_block > MOST_ROWS || time->splits < 1))
            return "the launch of a measured time is out of range";
    }
    return NULL;
}

static const char *kernel_fault(const struct core_pack *pack, const struct core_kernel *kernel)
{
    const uint32_t texts[] = {kernel->op, kernel->configuration, kernel->l2_state, kernel->entry,
                              kernel->vendor_routine};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; ++i)
        if (!is_text(pack, texts[i]))
            return "a kernel's text is out of range";
    if (kernel->device >= pack->header->device_count)
        return "a kernel's device is out of range";
    if (!is_extent(kernel->m) || !is_extent(kernel->n) || !is_extent(kernel->k))
        return "a kernel's shape is out of range";
    if (!is_time(kernel->us) || (kernel->vendor_us != 0 && !is_time(kernel->vendor_us)))
        return "a kernel's time is out of range";
    if (kernel->type < 0 || kernel->type >= CORE_TYPES)
        return "a kernel's type is out of range";
    if (!is_flag(kernel->orders[CORE_A]) || !is_flag(kernel->orders[CORE_B]) || !is_flag(kernel->orders[CORE_C]) ||
        !is_flag(kernel->conjugates[0]) || !is_flag(kernel->conjugates[1]) || !is_flag(kernel->is_gram))
        return "a kernel's op is out of range";
    if (kernel->is_gram && kernel->m != kernel->n)
        return "a kernel of a Gram matrix has m other than n";
    const char *fault = launch_fault(kernel);
    fault = fault != NULL ? fault : batch_fault(kernel);
    return fault != NULL ? fault : tiling_fault(kernel);
}

/* Return whether the kernel's times, and those of cuBLAS, are of single products or of batches, as the kernel is. */
static int are_of_kernel(const struct core_pack *pack, const struct core_kernel *kernel)
{
    int are = 1;
    for (uint32_t i = 0; i < kernel->time_count; ++i)
        are &= is_batch_of(kernel, pack->times[kernel->first_time + i].batch);
    for (uint32_t i = 0; i < kernel->vendor_time_count; ++i)
        are &= (pack->vendor_times[kernel->first_vendor_time + i].batch > 1) == (kernel->batched != CORE_SINGLE);
    return are;
}

/* Check all kernels. Their times have to follow each other without gaps. */
static const char *kernels_fault(const struct core_pack *pack)
{
    uint32_t time = 0, vendor_time = 0;
    for (uint32_t i = 0; i < pack->header->kernel_count; ++i) {
        const struct core_kernel *kernel = &pack->kernels[i];
        const char *fault = kernel_fault(pack, kernel);
        if (fault != NULL)
            return fault;
        if (kernel->first_time != time || kernel->time_count > pack->header->time_count - time ||
            kernel->first_vendor_time != vendor_time ||
            kernel->vendor_time_count > pack->header->vendor_time_count - vendor_time)
            return "a kernel's times are out of range";
        if (!are_of_kernel(pack, kernel))
            return "a kernel of single products has a time of a batch, or the opposite";
        time += kernel->time_count;
        vendor_time += kernel->vendor_time_count;
    }
    return NULL;
}

static const char *pack_fault(const struct core_pack *pack)
{
    const uint32_t text_bytes = pack->header->text_bytes;
    const char *fault = NULL;
    if (text_bytes == 0 || pack->texts[text_bytes - 1] != '\0')
        return "the last text does not end";
    if (pack->header->device_count > MOST_DEVICES)
        return "there are too many devices";
    for (uint32_t i = 0; i < pack->header->device_count && fault == NULL; ++i) {
        fault = device_fault(pack, &pack->devices[i]);
        if (fault == NULL && core_device_index(pack, core_text(pack, pack->devices[i].name)) != (int)i)
            fault = "two devices have one name";
    }
    if (fault == NULL)
        fault = times_fault(pack->times, pack->header->time_count, 0);
    if (fault == NULL)
        fault = times_fault(pack->vendor_times, pack->header->vendor_time_count, 1);
    return fault != NULL ? fault : kernels_fault(pack);
}

const char *core_open(const void *bytes, size_t size, void *memory, struct core_pack *pack)
{
    const char *start = (const char *)bytes;
    struct layout layout;
    memset(pack, 0, sizeof *pack);
    if (!read_layout(bytes, size, &layout))
        return "these bytes are no pack of this version";
    struct core_pack opened;
    opened.header = (const struct core_header *)bytes;
    opened.devices = (const struct core_device *)(start + layout.devices);
    opened.kernels = (const struct core_kernel *)(start + layout.kernels);
    opened.times = (const struct core_time *)(start + layout.times);
    opened.vendor_times = (const struct core_time *)(start + layout.vendor_times);
    opened.texts = start + layout.texts;
    opened.derived = (struct core_derived *)memory;
    opened.points = (struct core_point *)(opened.derived + opened.header->kernel_count);
    opened.vendor_points = opened.points + opened.header->kernel_count + opened.header->time_count;
    const char *fault = pack_fault(&opened);
    int next_point = 0, next_vendor_point = 0;
    for (uint32_t i = 0; i < opened.header->kernel_count && fault == NULL; ++i)
        fault = derive_kernel(&opened, (int)i, &next_point, &next_vendor_point);
    if (fault == NULL)
        *pack = opened;
    return fault;
}

int core_device_index(const struct core_pack *pack, const char *name)
{
    for (uint32_t i = 0; i < pack->header->device_count; ++i)
        if (strcmp(core_text(pack, pack->devices[i].name), name) == 0)
            return (int)i;
    return CORE_OTHER_GPU;
}
