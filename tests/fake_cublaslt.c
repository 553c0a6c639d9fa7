/* A cuBLASLt that writes down its calls in the driver's log. A descriptor is a table of attributes behind the number of its
   words, with gaps that keep what its memory held before. An operation may lack the last words, as of an older header. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef PREFIX
#define PREFIX "" /* of the lines of this library, among those of others */
#endif
#ifdef REVERSED /* descriptors of another version */
#define PLACE(at, count) ((count) - (at))
#else
#define PLACE(at, count) ((at) + 1)
#endif

void fake_note(const char *text);

enum { MOST = 32, INVALID = 7, TOO_SMALL = 3 };
struct attribute {
    int number, bytes;
    uint64_t standard;
};
static const struct attribute of_operation[] = { /* the last one is of a version that nobody knows */
    {0, 4, 0},  {1, 4, 0},  {2, 4, 0},  {3, 4, 0},  {4, 4, 0},  {5, 4, 0},  {6, 4, 2},  {7, 4, 1},  {8, 8, 0},
    {11, 8, 0}, {12, 8, 0}, {15, 4, 0}, {17, 8, 0}, {18, 8, 0}, {19, 8, 0}, {20, 8, 0}, {21, 8, 0}, {22, 4, 0xFFFFFFFF},
    {25, 1, 0}, {26, 4, 0xFFFFFFFF}, {31, 4, 0}, {38, 8, 0}, {41, 4, 0x8000}, {99, 1, 0}};
static const struct attribute of_layout[] = {{0, 4, 0}, {1, 4, 0}, {2, 8, 0}, {3, 8, 0}, {4, 8, 0},
                                             {5, 4, 1}, {6, 8, 0}, {7, 8, 0}, {8, 4, 0}, {99, 1, 0}};
enum { OLDER = 3 }; /* words that an operation may lack */
enum { IN_OPERATION = sizeof of_operation / sizeof *of_operation, IN_LAYOUT = sizeof of_layout / sizeof *of_layout };

static int place_of(const struct attribute *table, int count, int number)
{
    for (int at = 0; at < count; ++at)
        if (table[at].number == number)
            return at;
    return -1;
}

static int attributes_asked;
int fake_attributes_asked(void) { return attributes_asked; }

static int get(const struct attribute *table, int count, const uint64_t *words, int number, void *value, size_t bytes,
               size_t *written)
{
    ++attributes_asked;
    const int at = place_of(table, count, number);
    if (words == NULL || at < 0 || (uint64_t)PLACE(at, count) >= words[0] || bytes != (size_t)table[at].bytes)
        return INVALID;
    memcpy(value, &words[PLACE(at, count)], bytes);
    *written = bytes;
    return 0;
}

static int set(const struct attribute *table, int count, uint64_t *words, int number, const void *value, size_t bytes)
{
    const int at = place_of(table, count, number);
    if (words == NULL || at < 0 || (uint64_t)PLACE(at, count) >= words[0] || bytes != (size_t)table[at].bytes)
        return INVALID;
    memcpy(&words[PLACE(at, count)], value, bytes);
    return 0;
}

static int make(const struct attribute *table, int count, uint64_t *words, size_t bytes)
{
    const size_t all = (size_t)count + 1, given = bytes / sizeof *words;
    if (given < (table == of_operation ? all - OLDER : all))
        return TOO_SMALL;
    words[0] = given < all ? given : all;
    for (int at = 0; at < count; ++at)
        if ((uint64_t)PLACE(at, count) < words[0])
            memcpy(&words[PLACE(at, count)], &table[at].standard, (size_t)table[at].bytes);
    return 0;
}

/* Memory that holds other bytes each time. */
static uint64_t *taken(int count)
{
    static unsigned char turn;
    const size_t bytes = ((size_t)count + 1) * sizeof(uint64_t);
    uint64_t *words = malloc(bytes);
    return words == NULL ? NULL : memset(words, ++turn, bytes);
}

int cublasLtMatmulDescGetAttribute(const uint64_t *words, int number, void *value, size_t bytes, size_t *written)
{
    return get(of_operation, IN_OPERATION, words, number, value, bytes, written);
}

int cublasLtMatmulDescSetAttribute(uint64_t *words, int number, const void *value, size_t bytes)
{
    return set(of_operation, IN_OPERATION, words, number, value, bytes);
}

int cublasLtMatrixLayoutGetAttribute(const uint64_t *words, int number, void *value, size_t bytes, size_t *written)
{
    return get(of_layout, IN_LAYOUT, words, number, value, bytes, written);
}

int cublasLtMatrixLayoutSetAttribute(uint64_t *words, int number, const void *value, size_t bytes)
{
    return set(of_layout, IN_LAYOUT, words, number, value, bytes);
}

int cublasLtMatmulDescInit_internal(uint64_t *words, size_t bytes, int compute, int scale)
{
    if (make(of_operation, IN_OPERATION, words, bytes) != 0)
        return TOO_SMALL;
    return cublasLtMatmulDescSetAttribute(words, 0, &compute, sizeof compute) |
           cublasLtMatmulDescSetAttribute(words, 1, &scale, sizeof scale);
}

int cublasLtMatrixLayoutInit_internal(uint64_t *words, size_t bytes, int type, uint64_t rows, uint64_t columns, int64_t ld)
{
    if (make(of_layout, IN_LAYOUT, words, bytes) != 0)
        return TOO_SMALL;
    return cublasLtMatrixLayoutSetAttribute(words, 0, &type, sizeof type) |
           cublasLtMatrixLayoutSetAttribute(words, 2, &rows, sizeof rows) |
           cublasLtMatrixLayoutSetAttribute(words, 3, &columns, sizeof columns) |
           cublasLtMatrixLayoutSetAttribute(words, 4, &ld, sizeof ld);
}

int cublasLtMatmulDescCreate(uint64_t **made, int compute, int scale)
{
    *made = taken(IN_OPERATION);
    return cublasLtMatmulDescInit_internal(*made, (IN_OPERATION + 1) * sizeof **made, compute, scale);
}

int cublasLtMatrixLayoutCreate(uint64_t **made, int type, uint64_t rows, uint64_t columns, int64_t ld)
{
    *made = taken(IN_LAYOUT);
    return cublasLtMatrixLayoutInit_internal(*made, (IN_LAYOUT + 1) * sizeof **made, type, rows, columns, ld);
}

static int told(char *line, int at, const char *name, const struct attribute *table, int count, const uint64_t *words)
{
    at += sprintf(line + at, " %s", name);
    for (int i = 0; words != NULL && i < count; ++i) {
        uint64_t value = 0;
        if ((uint64_t)PLACE(i, count) < words[0])
            memcpy(&value, &words[PLACE(i, count)], (size_t)table[i].bytes);
        at += sprintf(line + at, ",%lld", (long long)value);
    }
    return at;
}

int cublasLtMatmul(void *handle, const uint64_t *operation, const void *alpha, const void *A, const uint64_t *layout_a,
                   const void *B, const uint64_t *layout_b, const void *beta, const void *C, const uint64_t *layout_c, void *D,
                   const uint64_t *layout_d, const void *algorithm, void *workspace, size_t workspace_bytes, void *stream)
{
    char line[4000];
    int at = sprintf(line, PREFIX "cublasLtMatmul stream %llx", (unsigned long long)(uintptr_t)stream);
    const void *const arguments[] = {handle,   operation, alpha, A,        layout_a,  B,        layout_b,
                                     beta,     C,         layout_c, D,     layout_d,  algorithm, workspace};
    for (size_t i = 0; i < sizeof arguments / sizeof *arguments; ++i)
        at += sprintf(line + at, " %lld", (long long)(uintptr_t)arguments[i]);
    at += sprintf(line + at, " %zu", workspace_bytes);
    at = told(line, at, "operation", of_operation, IN_OPERATION, operation);
    at = told(line, at, "a", of_layout, IN_LAYOUT, layout_a);
    at = told(line, at, "b", of_layout, IN_LAYOUT, layout_b);
    at = told(line, at, "c", of_layout, IN_LAYOUT, layout_c);
    told(line, at, "d", of_layout, IN_LAYOUT, layout_d);
    fake_note(line);
    return 0;
}
