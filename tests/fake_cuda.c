/* A CUDA driver that computes nothing: it writes down what it is asked, and fails where it is told to. */

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long pointer;

enum { OWN_STREAM = 0x5001 }; /* that the program has not made */

void fake_work(const void *stream, int ms);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char text[1 << 22];
static size_t written;
static char device[256] = "NVIDIA H200", failing[64];
static int failure, major_version = 9, minor_version = 0;
static unsigned long long free_bytes = 1 << 30, allocations, first_stream_id, capturing, known_pointer;
static int memory_type; /* of the known pointer: 1 on the host, 2 on the device */
static size_t sizes[1 << 12];
static _Thread_local int capture_mode; /* 2: relaxed */
static _Thread_local void *contexts[16] = {(void *)0xC0};
static _Thread_local int depth;

static void note(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    pthread_mutex_lock(&lock);
    if (written < sizeof text - 4096)
        written += (size_t)vsnprintf(text + written, 4096, format, arguments);
    pthread_mutex_unlock(&lock);
    va_end(arguments);
}

/* Memory of handles: what was given back last is taken first. */

static void *given_back;

void *fake_take(size_t bytes)
{
    pthread_mutex_lock(&lock);
    void *found = given_back;
    if (found != NULL)
        given_back = *(void **)found;
    pthread_mutex_unlock(&lock);
    return found != NULL ? memset(found, 0, bytes) : calloc(1, bytes);
}

void fake_give_back(void *memory)
{
    pthread_mutex_lock(&lock);
    *(void **)memory = given_back;
    given_back = memory;
    pthread_mutex_unlock(&lock);
}

/* What a test asks for. */

void fake_note(const char *line) { note("%s\n", line); }
const char *fake_log(void) { return text; }
void fake_reset(void) { written = 0, text[0] = '\0', failing[0] = '\0', free_bytes = 1 << 30, capturing = first_stream_id = known_pointer = 0; }
void fake_fail(const char *name, int result) { snprintf(failing, sizeof failing, "%s", name), failure = result; }
void fake_memory(unsigned long long bytes) { free_bytes = bytes; }
void fake_capture(unsigned long long stream) { capturing = stream; }
void fake_memory_type(unsigned long long address, int type) { known_pointer = address, memory_type = type; }
void fake_stream_ids(unsigned long long first) { first_stream_id = first; }
void fake_context(unsigned long long context) { contexts[depth] = (void *)context; }
void fake_device(const char *name, int major, int minor)
{
    snprintf(device, sizeof device, "%s", name);
    major_version = major, minor_version = minor;
}

#define FAIL(name)                                                                                                    \
    if (strcmp(failing, name) == 0)                                                                                   \
        return failure;
#define NEEDS_CONTEXT(name)                                                                                           \
    FAIL(name)                                                                                                        \
    if (contexts[depth] == NULL)                                                                                      \
        return 201; /* CUDA_ERROR_INVALID_CONTEXT */

/* A call that ends a capture on any stream, unless its thread is in the relaxed mode. */
static void unsafe(const char *name)
{
    if (capturing != 0 && capture_mode != 2)
        note("capture ended by %s\n", name);
}

int cuInit(unsigned flags)
{
    FAIL("cuInit")
    return (int)flags;
}

int cuGetErrorName(int result, const char **name)
{
    *name = result == 1 ? "CUDA_ERROR_INVALID_VALUE" : result == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : NULL;
    return *name == NULL;
}

int cuCtxGetCurrent(void **context)
{
    *context = contexts[depth];
    return 0;
}

int cuCtxPushCurrent_v2(void *context)
{
    FAIL("cuCtxPushCurrent")
    contexts[++depth] = context;
    note("push %llx\n", (pointer)context);
    return 0;
}

int cuCtxPopCurrent_v2(void **context)
{
    *context = contexts[depth--];
    note("pop\n");
    return 0;
}

int cuCtxSynchronize(void)
{
    NEEDS_CONTEXT("cuCtxSynchronize")
    unsafe("cuCtxSynchronize");
    note("wait for all\n");
    return 0;
}

int cuCtxGetDevice(int *found)
{
    NEEDS_CONTEXT("cuCtxGetDevice")
    *found = 0;
    return 0;
}

int cuDeviceGet(int *found, int ordinal)
{
    *found = ordinal;
    return 0;
}

int cuDeviceGetName(char *name, int bytes, int found)
{
    snprintf(name, (size_t)bytes, "%s", device);
    return found;
}

int cuDeviceGetAttribute(int *value, int attribute, int found)
{
    *value = attribute == 75 ? major_version : minor_version;
    return found;
}

int cuModuleLoadData(void **module, const void *image)
{
    NEEDS_CONTEXT("cuModuleLoadData")
    unsafe("cuModuleLoadData");
    note("load %.40s\n", (const char *)image);
    *module = (void *)image;
    return (size_t)image % 64 != 0;
}

int cuModuleUnload(void *module)
{
    note("unload %.40s\n", (const char *)module);
    return 0;
}

int cuModuleGetFunction(void **function, void *module, const char *name)
{
    NEEDS_CONTEXT("cuModuleGetFunction")
    note("function %s\n", name);
    *function = module;
    return 0;
}

int cuFuncSetAttribute(void *function, int attribute, int value)
{
    NEEDS_CONTEXT("cuFuncSetAttribute")
    note("attribute %d = %d\n", attribute, value);
    return function == NULL;
}

/* The last word of a kernel's name may be the number of its parameters. */
static int parameters_of(const char *kernel)
{
    int count = 13;
    sscanf(kernel, "%*40s %*d %*40s %d", &count);
    return count;
}

int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                   unsigned block_z, unsigned smem_bytes, void *stream, void **parameters, void **extra)
{
    char line[1024] = "";
    NEEDS_CONTEXT("cuLaunchKernel")
    for (int i = 0; i < parameters_of(function); ++i) {
        strcat(line, " ");
        for (int byte = 0; byte < 16; ++byte)
            sprintf(line + strlen(line), "%02x", ((unsigned char *)parameters[i])[byte]);
    }
    if (getenv("FAKE_KERNEL_WRITES") != NULL) { /* one of the doubles of C, in the host's memory */
        const char *place = getenv("FAKE_KERNEL_WRITES_AT");
        (*(double **)parameters[9])[place == NULL ? 0 : atoi(place)] = atof(getenv("FAKE_KERNEL_WRITES"));
    }
    if (getenv("FAKE_KERNEL_MS") != NULL)
        fake_work(stream, atoi(getenv("FAKE_KERNEL_MS")));
    note("launch %u %u %u %u %u %u %u %llu%s %.40s\n", grid_x, grid_y, grid_z, block_x, block_y, block_z, smem_bytes,
         (pointer)stream, line, (const char *)function);
    return extra != NULL;
}

int cuMemAlloc_v2(pointer *address, size_t bytes)
{
    NEEDS_CONTEXT("cuMemAlloc")
    unsafe("cuMemAlloc");
    if (bytes > free_bytes)
        return 2;
    pthread_mutex_lock(&lock);
    free_bytes -= bytes;
    sizes[++allocations % (1 << 12)] = bytes;
    *address = allocations << 20;
    pthread_mutex_unlock(&lock);
    note("allocate %zu\n", bytes);
    return 0;
}

int cuMemFree_v2(pointer address)
{
    NEEDS_CONTEXT("cuMemFree")
    const size_t bytes = sizes[(address >> 20) % (1 << 12)];
    pthread_mutex_lock(&lock);
    free_bytes += bytes;
    pthread_mutex_unlock(&lock);
    note("free %zu\n", bytes);
    return 0;
}

/* Memory that it has not allocated is not known. */
int cuPointerGetAttribute(void *value, int attribute, pointer address)
{
    NEEDS_CONTEXT("cuPointerGetAttribute")
    *(int *)value = memory_type;
    return attribute != 2 || known_pointer == 0 || address != known_pointer;
}

int cuMemsetD32Async(pointer address, unsigned value, size_t words, void *stream)
{
    NEEDS_CONTEXT("cuMemsetD32Async")
    note("zero %llx %zu words on %llu\n", address, words, (pointer)stream);
    return value != 0;
}

int cuMemsetD2D8Async(pointer address, size_t pitch, unsigned char value, size_t width, size_t height, void *stream)
{
    NEEDS_CONTEXT("cuMemsetD2D8Async")
    note("zero %llx pitch %zu width %zu height %zu on %llu\n", address, pitch, width, height, (pointer)stream);
    return value != 0;
}

int cuMemsetD2D32Async(pointer address, size_t pitch, unsigned value, size_t words, size_t height, void *stream)
{
    NEEDS_CONTEXT("cuMemsetD2D32Async")
    note("set %llx pitch %zu words %zu height %zu on %llu\n", address, pitch, words, height, (pointer)stream);
    return value != 0;
}

int cuStreamCreate(void **stream, unsigned flags)
{
    NEEDS_CONTEXT("cuStreamCreate")
    unsafe("cuStreamCreate");
    *stream = (void *)(size_t)(OWN_STREAM - 1 + flags);
    return 0;
}

int cuStreamSynchronize(void *stream)
{
    NEEDS_CONTEXT("cuStreamSynchronize")
    unsafe("cuStreamSynchronize");
    if (capturing != 0 && (pointer)stream == capturing)
        return 900; /* CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED */
    note("wait for %llu\n", (pointer)stream);
    return 0;
}

int cuThreadExchangeStreamCaptureMode(int *mode)
{
    const int before = capture_mode;
    capture_mode = *mode;
    *mode = before;
    return capture_mode < 0 || capture_mode > 2;
}

int cuStreamIsCapturing(void *stream, int *status)
{
    NEEDS_CONTEXT("cuStreamIsCapturing")
    *status = capturing != 0 && (pointer)stream == capturing;
    return 0;
}

int cuCtxGetId(void *context, unsigned long long *id)
{
    NEEDS_CONTEXT("cuCtxGetId")
    *id = (pointer)(context == NULL ? contexts[depth] : context);
    return 0;
}

/* Events: an event's time is the number of those before it on streams of the program's, in milliseconds, with what the
   host takes between them, or until the stream's work is done. */

static int moments, busy_until;
static const void *busy;
struct event {
    int moment;
    void *context;
};

/* The host is busy for so long. */
void fake_pass(int ms) { moments += ms; }

/* The stream has so much more to do. */
void fake_work(const void *stream, int ms)
{
    busy_until = (stream == busy && busy_until > moments ? busy_until : moments) + ms;
    busy = stream;
}

int cuEventCreate(struct event **event, unsigned flags)
{
    NEEDS_CONTEXT("cuEventCreate")
    *event = calloc(1, sizeof **event);
    (*event)->context = contexts[depth];
    return (int)flags;
}

int cuEventRecord(struct event *event, void *stream)
{
    NEEDS_CONTEXT("cuEventRecord")
    if (event->context != contexts[depth])
        return 400; /* CUDA_ERROR_INVALID_HANDLE */
    if ((pointer)stream != OWN_STREAM)
        ++moments;
    event->moment = stream == busy && busy_until > moments ? busy_until : moments;
    return 0;
}

int cuEventDestroy_v2(void *event)
{
    NEEDS_CONTEXT("cuEventDestroy")
    free(event);
    return 0;
}

int cuEventQuery(void *event)
{
    NEEDS_CONTEXT("cuEventQuery")
    unsafe("cuEventQuery");
    return ((struct event *)event)->moment == 0;
}

int cuEventElapsedTime(float *ms, const struct event *begin, const struct event *end)
{
    NEEDS_CONTEXT("cuEventElapsedTime")
    *ms = (float)(end->moment - begin->moment);
    return 0;
}

struct copy_2d {
    size_t source_x, source_y;
    int source_kind;
    const unsigned char *source_host;
    pointer source_device;
    void *source_array;
    size_t source_pitch, target_x, target_y;
    int target_kind;
    unsigned char *target_host;
    pointer target_device;
    void *target_array;
    size_t target_pitch, width_bytes, height;
};

/* Device memory is the host's here. */
int cuMemcpy2DAsync_v2(const struct copy_2d *copy, void *stream)
{
    NEEDS_CONTEXT("cuMemcpy2DAsync")
    if (copy->source_kind == 2 && copy->target_kind == 2) { /* which nobody reads here */
        note("copy %llx pitch %zu to %llx pitch %zu width %zu height %zu on %llu\n", copy->source_device,
             copy->source_pitch, copy->target_device, copy->target_pitch, copy->width_bytes, copy->height,
             (pointer)stream);
        return 0;
    }
    unsafe("cuMemcpy2DAsync");
    const unsigned char *from = copy->source_kind == 1 ? copy->source_host : (unsigned char *)(size_t)copy->source_device;
    unsigned char *to = copy->target_kind == 1 ? copy->target_host : (unsigned char *)(size_t)copy->target_device;
    for (size_t line = 0; line < copy->height; ++line)
        memcpy(to + line * copy->target_pitch, from + line * copy->source_pitch, copy->width_bytes);
    return 0;
}

int cuStreamGetId(void *stream, unsigned long long *id)
{
    NEEDS_CONTEXT("cuStreamGetId")
    *id = first_stream_id + (pointer)stream;
    return 0;
}
