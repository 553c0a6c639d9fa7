#pragma once
// Copies of a batch of small matrices. A line is a column of a column-major matrix, or a row of a row-major one. In
// global memory lines begin `ld` elements apart, and matrices `stride` elements. In shared memory the distances are
// `line_pitch` and `pitch`. All threads of a block copy a group of matrices together.
#include "async_copy.cuh"
#include "epilogue.cuh"

// The position of an element or vector: its index in its line (`at`), the line in its matrix, and the matrix in its
// group. `advance` adds a step, which is a Position, too, without a division.
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
// - wide: its runs are whole aligned vectors, which are copied. A run is contiguous in both memories: a matrix if that
//   is contiguous, otherwise a line;
// - otherwise elements are copied.
// If `has_padding`, in shared memory a vector of padding follows each line that is an even number of vectors, and each
// matrix that is one with its padded lines. So threads that read the same vector of successive lines or matrices read
// different banks.
template <class T, class Index, int block_threads, int vector_width, bool has_padding> class MatrixBatch {
    Index ld;
    long long stride;
    int elements;            // of a matrix
    int line_pitch, pitch;   // from a line or a matrix to the next in shared memory
    bool is_one_run;         // a matrix is a run; otherwise its lines are
    bool is_flat, is_wide;
    int per_run, runs;       // of a matrix; vectors if `is_wide`, otherwise elements of lines
    Position first, step;    // of this thread: its first position, and the step to its next

    static __device__ __forceinline__ bool begins_aligned(const T *base, int count)
    {
        return reinterpret_cast<unsigned long long>(base) % (count * sizeof(T)) == 0;
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
            one.advance(step, per_run, runs);
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
    // Each matrix has `lines` lines of `contiguous` elements. A group has `group_size` matrices, except the last.
    __device__ __forceinline__ MatrixBatch(
        const T *base, Index ld, long long stride, int contiguous, int lines, int group_size)
        : ld(ld), stride(stride), elements(contiguous * lines), line_pitch(pitch_of(contiguous)),
          pitch(pitch_of(lines * line_pitch)),
          is_one_run(lines == 1 || (ld == contiguous && line_pitch == contiguous)),
          is_flat(vector_width > 1 && is_one_run && stride == elements && pitch == elements &&
                  group_size * elements % vector_width == 0 && begins_aligned(base, vector_width)),
          is_wide(vector_width > 1 && (is_one_run ? elements : contiguous) % vector_width == 0 &&
                  (is_one_run || ld % vector_width == 0) && stride % vector_width == 0 &&
                  begins_aligned(base, vector_width)),
          per_run(!is_wide ? contiguous : (is_one_run ? elements : contiguous) / vector_width),
          runs(is_wide && is_one_run ? 1 : lines), first(threadIdx.x, per_run, runs), step(block_threads, per_run, runs)
    {
    }

    // Return whether vectors of `count` elements are aligned in every line, if they are in the first.
    __device__ __forceinline__ bool is_aligned(const T *base, int count) const
    {
        return begins_aligned(base, count) && ld % count == 0 && stride % count == 0;
    }

    // Return the elements from a line or matrix of `elements` elements to the next in shared memory.
    static __device__ __forceinline__ int pitch_of(int elements)
    {
        return elements + (has_padding && elements % (2 * vector_width) == 0 ? vector_width : 0);
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
