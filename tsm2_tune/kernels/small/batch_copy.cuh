#pragma once
// Copies of a batch of small matrices. A line is a column of a column-major matrix, or a row of a row-major one. In
// global memory lines begin `ld` elements apart, and matrices `stride` elements. In shared memory the distances are
// `line_pitch` and `pitch`. All threads of a block copy a group of matrices together.
#include "async_copy.cuh"
#include "epilogue.cuh"

// The position of an element or vector: its number in its line, the line, and the matrix of the group. A step between
// positions is stored as a Position too; adding it needs no division.
struct Position {
    int at, line, matrix;
    __device__ __forceinline__ Position(int number, int per_line, int lines)
        : at(number % per_line), line(number / per_line % lines), matrix(number / per_line / lines)
    {
    }
    __device__ __forceinline__ void advance(const Position &step, int per_line, int lines)
    {
        at += step.at;
        line += step.line;
        matrix += step.matrix;
        if (at >= per_line) {
            at -= per_line;
            ++line;
        }
        if (line >= lines) {
            line -= lines;
            ++matrix;
        }
    }
};

// C = alpha sums + beta C, for `count` contiguous elements. Sums in shared memory are read in vectors of 16 bytes.
template <int count, class T, class Sum>
__device__ __forceinline__ void store_from_shared(T *C, const Sum *from, Sum alpha, Sum beta)
{
    constexpr int width = count * sizeof(Sum) > 16 ? 16 / sizeof(Sum) : count;
    using V = Vector<Sum, width>;
    Sum sum[count];
    #pragma unroll
    for (int v = 0; v < count / width; ++v) {
        const V vector = vector_of<V>(reinterpret_cast<const typename V::bits_t *>(from)[v]);
        #pragma unroll
        for (int e = 0; e < width; ++e)
            sum[v * width + e] = vector.element[e];
    }
    store_sums<count>(C, sum, alpha, beta);
}

// A batch of matrices. There are three ways to copy a group of them:
// - flat: the group is contiguous in both memories, and its vectors are copied;
// - wide: each matrix, or each padded line, is contiguous in both memories, and its vectors are copied;
// - otherwise elements are copied.
// If `has_padding`, a vector of padding follows each line in shared memory, so that the lines begin in different banks.
template <class T, class Index, int block_threads, int vector_width, bool has_padding> class MatrixBatch {
    Index ld;
    long long stride;
    int elements;  // of a matrix
    bool is_flat, is_wide;
    int line_pitch, pitch; // of lines and matrices in shared memory
    int per_line, lines;   // of a matrix, in vectors if `is_wide`, which without padding counts it as one line
    Position first, step;  // of this thread: its first position, and the step to its next

    // Return whether all matrices begin at multiples of a vector, and consist of whole vectors that are contiguous in
    // both memories. Padded lines must each consist of whole vectors.
    static __device__ __forceinline__ bool has_whole_vectors(
        const T *base, Index ld, long long stride, int contiguous, int all_lines)
    {
        const bool is_contiguous = ld == contiguous || all_lines == 1;
        const bool is_whole = has_padding ? contiguous % vector_width == 0 && ld % vector_width == 0
                                          : contiguous * all_lines % vector_width == 0 && is_contiguous;
        return vector_width > 1 && is_whole && stride % vector_width == 0 && begins_aligned(base, vector_width);
    }

    // Return whether a group of matrices is contiguous in both memories, and begins at a multiple of a vector.
    static __device__ __forceinline__ bool is_group_flat(
        const T *base, Index ld, long long stride, int contiguous, int all_lines, int group_size)
    {
        const int elements = contiguous * all_lines;
        return vector_width > 1 && !has_padding && (ld == contiguous || all_lines == 1) && stride == elements &&
               group_size * elements % vector_width == 0 && begins_aligned(base, vector_width);
    }

    static __device__ __forceinline__ bool begins_aligned(const T *base, int count)
    {
        return reinterpret_cast<unsigned long long>(base) % (count * sizeof(T)) == 0;
    }

    __device__ __forceinline__ MatrixBatch(
        Index ld, long long stride, int contiguous, int all_lines, bool is_flat, bool is_wide)
        : ld(ld), stride(stride), elements(contiguous * all_lines), is_flat(is_flat), is_wide(is_wide),
          line_pitch(line_pitch_of(contiguous)), pitch(all_lines * line_pitch),
          per_line(!is_wide ? contiguous : (has_padding ? contiguous : elements) / vector_width),
          lines(is_wide && !has_padding ? 1 : all_lines), first(threadIdx.x, per_line, lines),
          step(block_threads, per_line, lines)
    {
    }

    // Call `visit(offset in shared memory, offset in global memory)` for the units of `count` matrices. A unit is a
    // vector or an element, of `unit` elements.
    template <int unit, class Visit> __device__ __forceinline__ void visit_units(int count, Visit visit) const
    {
        const int units = count * (elements / unit);
        Position one = first;
        #pragma unroll 1
        for (int number = threadIdx.x; number < units; number += block_threads) {
            visit(one.matrix * pitch + one.line * line_pitch + one.at * unit,
                  one.matrix * stride + one.line * (long long)ld + one.at * unit);
            one.advance(step, per_line, lines);
        }
    }

    // Call `wide` for the vectors of `count` matrices, and `narrow` for the elements that are in no vector.
    template <class Wide, class Narrow>
    __device__ __forceinline__ void visit_matrices(int count, Wide wide, Narrow narrow) const
    {
        if (is_flat) {
            const int all = count * elements, vectors = all / vector_width;
            #pragma unroll 1
            for (int v = threadIdx.x; v < vectors; v += block_threads)
                wide(v * vector_width, v * vector_width);
            const int tail = vectors * vector_width + threadIdx.x;
            if (tail < all)
                narrow(tail, tail);
        } else if (is_wide) {
            visit_units<vector_width>(count, wide);
        } else {
            visit_units<1>(count, narrow);
        }
    }

public:
    // Each matrix has `all_lines` lines of `contiguous` elements. A group has `group_size` matrices, except the last.
    __device__ __forceinline__ MatrixBatch(
        const T *base, Index ld, long long stride, int contiguous, int all_lines, int group_size)
        : MatrixBatch(ld, stride, contiguous, all_lines,
                      is_group_flat(base, ld, stride, contiguous, all_lines, group_size),
                      has_whole_vectors(base, ld, stride, contiguous, all_lines))
    {
    }

    // Return whether vectors of `count` elements are aligned in every line, if they are in the first.
    __device__ __forceinline__ bool is_aligned(const T *base, int count) const
    {
        return begins_aligned(base, count) && ld % count == 0 && stride % count == 0;
    }

    // The elements from a line to the next in shared memory.
    static __device__ __forceinline__ int line_pitch_of(int contiguous)
    {
        return contiguous + (has_padding ? vector_width : 0);
    }

    // Copy the first `count` matrices at `from` to shared memory, asynchronously.
    __device__ __forceinline__ void load(T *to, const T *from, int count) const
    {
        visit_matrices(
            count,
            [&](int shared, long long global) { cp_async<vector_width * int(sizeof(T))>(to + shared, from + global); },
            [&](int shared, long long global) { cp_async<int(sizeof(T))>(to + shared, from + global); });
    }

    // C = alpha sums + beta C, for the first `count` matrices. The sums are in shared memory.
    template <class Sum>
    __device__ __forceinline__ void store(T *C, const Sum *sums, int count, Sum alpha, Sum beta) const
    {
        visit_matrices(
            count,
            [&](int shared, long long global) {
                store_from_shared<vector_width>(C + global, sums + shared, alpha, beta);
            },
            [&](int shared, long long global) { store_from_shared<1>(C + global, sums + shared, alpha, beta); });
    }
};
