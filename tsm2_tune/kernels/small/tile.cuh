#pragma once
// A thread's tile of a small product, whose operands are in shared memory. M, N and K are the extents of the product if
// the compiler knows them, or 0. A dimension with a known extent is accessed in vectors, if their width divides the
// extent and the tile.
#include "epilogue.cuh"

// The contiguous dimensions of A, B and C.
template <bool of_a, bool of_b, bool of_c> struct TileOrders {
    static constexpr bool a_along_k = of_a, b_along_n = of_b, c_along_n = of_c;
};

// Return the largest power of 2, at most `most`, that divides `extent` and the `count` elements of a tile; 1 if
// `extent` is 0.
constexpr int elements_of_vector(int extent, int count, int most)
{
    int elements = most;
    while (elements > 1 && (extent == 0 || extent % elements || count % elements))
        elements /= 2;
    return elements;
}

template <int count, class T, class Visit>
__device__ __forceinline__ void read_vector(const T *from, Visit visit)
{
    using V = Vector<T, count>;
    const V vector = vector_of<V>(*reinterpret_cast<const typename V::bits_t *>(from));
    #pragma unroll
    for (int e = 0; e < count; ++e)
        visit(e, vector.element[e]);
}

template <int rows, int columns, int most, class Orders, int M, int N, int K> struct SmallTile {
    // If `row_width` > 1, a tile has successive rows, which are read or written in vectors of `row_width` elements.
    // Otherwise its rows are `down` rows apart, so that neighboring threads have neighboring rows. The same holds for
    // columns, with `column_width` and `across`.
    static constexpr bool a_along_k = Orders::a_along_k, b_along_n = Orders::b_along_n, c_along_n = Orders::c_along_n;
    static constexpr int row_width = a_along_k && c_along_n ? 1 : elements_of_vector(M, rows, most);
    static constexpr int column_width = b_along_n || c_along_n ? elements_of_vector(N, columns, most) : 1;
    static constexpr int k_width = a_along_k || !b_along_n ? elements_of_vector(K, most, most) : 1;
    static constexpr int c_width = c_along_n ? column_width : row_width;
    static constexpr int unroll = K && K <= 16 ? K : 4;

    int height, breadth, depth;
    int pitch_a, pitch_b;  // elements from a line of A or B to the next
    int down, across;      // tiles of C along m and along n

    __device__ __forceinline__ SmallTile(int height, int breadth, int depth, int pitch_a, int pitch_b)
        : height(height), breadth(breadth), depth(depth), pitch_a(pitch_a), pitch_b(pitch_b),
          down((height - 1) / rows + 1), across((breadth - 1) / columns + 1)
    {
    }

    // Return the row of C that is row r of the tile at x; the same for columns. It may be past the last row.
    __device__ __forceinline__ int row(int x, int r) const { return row_width > 1 ? x * rows + r : x + r * down; }
    __device__ __forceinline__ int column(int y, int c) const
    {
        return column_width > 1 ? y * columns + c : y + c * across;
    }

    // The same, clamped to the last vector inside the matrix, so that reads stay in bounds.
    __device__ __forceinline__ int row_inside(int x, int r) const
    {
        const int first = row(x, r / row_width * row_width), last = height - row_width;
        return ((M && M % rows == 0) || first < last ? first : last) + r % row_width;
    }
    __device__ __forceinline__ int column_inside(int y, int c) const
    {
        const int first = column(y, c / column_width * column_width), last = breadth - column_width;
        return ((N && N % columns == 0) || first < last ? first : last) + c % column_width;
    }

    // Call `visit(r, s, element)` for the elements of A in the tile's rows and in columns l + s, s < k_width.
    template <class T, class Visit> __device__ __forceinline__ void read_a(const T *A, int x, int l, Visit visit) const
    {
        if constexpr (a_along_k) {
            #pragma unroll
            for (int r = 0; r < rows; ++r)
                read_vector<k_width>(
                    A + row_inside(x, r) * pitch_a + l, [&](int s, T element) { visit(r, s, element); });
        } else {
            #pragma unroll
            for (int s = 0; s < k_width; ++s)
                #pragma unroll
                for (int r = 0; r < rows; r += row_width)
                    read_vector<row_width>(A + row_inside(x, r) + (l + s) * pitch_a,
                                           [&](int e, T element) { visit(r + e, s, element); });
        }
    }

    // Call `visit(s, c, element)` for the elements of B in rows l + s, s < k_width, and in the tile's columns.
    template <class T, class Visit> __device__ __forceinline__ void read_b(const T *B, int y, int l, Visit visit) const
    {
        if constexpr (b_along_n) {
            #pragma unroll
            for (int s = 0; s < k_width; ++s)
                #pragma unroll
                for (int c = 0; c < columns; c += column_width)
                    read_vector<column_width>(B + column_inside(y, c) + (l + s) * pitch_b,
                                              [&](int e, T element) { visit(s, c + e, element); });
        } else {
            #pragma unroll
            for (int c = 0; c < columns; ++c)
                read_vector<k_width>(
                    B + column_inside(y, c) * pitch_b + l, [&](int s, T element) { visit(s, c, element); });
        }
    }

    // Call `visit(row, column, vector of c_width sums)` for the tile's vectors inside C.
    template <class Sum, class Visit>
    __device__ __forceinline__ void visit_sums(const Sum (&sum)[rows][columns], int x, int y, Visit visit) const
    {
        #pragma unroll
        for (int r = 0; r < rows; r += c_along_n ? 1 : c_width)
            #pragma unroll
            for (int c = 0; c < columns; c += c_along_n ? c_width : 1) {
                const int i = row(x, r), j = column(y, c);
                if (((M && M % rows == 0) || i < height) && ((N && N % columns == 0) || j < breadth)) {
                    Sum vector[c_width];
                    #pragma unroll
                    for (int e = 0; e < c_width; ++e)
                        vector[e] = sum[c_along_n ? r : r + e][c_along_n ? c + e : c];
                    visit(i, j, vector);
                }
            }
    }

    // Write the sums to a matrix in shared memory, which has C's order.
    template <class Sum>
    __device__ __forceinline__ void write(Sum *sums, const Sum (&sum)[rows][columns], int x, int y) const
    {
        constexpr int count = c_width * int(sizeof(Sum)) > 16 ? 16 / int(sizeof(Sum)) : c_width;
        using V = Vector<Sum, count>;
        visit_sums(sum, x, y, [&](int i, int j, const Sum(&vector)[c_width]) {
            Sum *to = sums + (c_along_n ? i * breadth + j : i + j * height);
            #pragma unroll
            for (int e = 0; e < c_width; e += count) {
                V part;
                #pragma unroll
                for (int f = 0; f < count; ++f)
                    part.element[f] = vector[e + f];
                *reinterpret_cast<typename V::bits_t *>(to + e) = bits_of(part);
            }
        });
    }

    // C = alpha sums + beta C, in vectors if `has_vectors`: then C's vectors are aligned.
    template <class T, class Index, class Sum>
    __device__ __forceinline__ void store(
        T *C, Index ldc, const Sum (&sum)[rows][columns], int x, int y, Sum alpha, Sum beta, bool has_vectors) const
    {
        visit_sums(sum, x, y, [&](int i, int j, const Sum(&vector)[c_width]) {
            T *to = C + (c_along_n ? i * (long long)ldc + j : i + j * (long long)ldc);
            if (has_vectors) {
                store_sums<c_width>(to, vector, alpha, beta);
                return;
            }
            #pragma unroll
            for (int e = 0; e < c_width; ++e)
                store_sums<1>(to + e, {vector[e]}, alpha, beta);
        });
    }
};
