#pragma once
// Products of complex numbers by the f64 tensor cores for real ones. Which rows and columns the tensor core's are is
// free, as long as A, B and C agree. Of C its rows g are the real parts of 8 rows, and its rows g + 8 the imaginary
// ones. Of 4 products along k its columns of A and rows of B, t and t + 4, are the real and the imaginary parts of B.
// So a lane has one element of B, as it lies in memory, and one of A as a matrix of real numbers:
//     re -im                                               re  im
//     im  re   or, where A or B alone is conjugated,       im -re   as if B were.
// Where A is conjugated, the sum is the conjugate of C.
__device__ __forceinline__ double flipped(double x, unsigned long long bits)
{
    return __longlong_as_double(__double_as_longlong(x) ^ bits);
}

// The matrix, column by column. A copy must look like a new number: of one number in two places the compiler would copy
// all four for every product. So bits are flipped that are 0, which the compiler does not know. A sum with 0 would do
// too, in the tensor cores' time.
template <bool one_conjugated>
__device__ __forceinline__ void as_matrix(double *a, double re, double im)
{
    const unsigned long long none = threadIdx.z | (unsigned long long)threadIdx.z << 32, sign = none ^ 1ull << 63;
    a[0] = re;
    a[1] = im;
    a[2] = flipped(im, one_conjugated ? none : sign);
    a[3] = flipped(re, one_conjugated ? sign : none);
}

// A lane's sums: the real parts in row g, columns 2 t and 2 t + 1, then the imaginary ones; here in column 2 t + e.
template <class T, bool conjugated_a>
__device__ __forceinline__ T complex_sum(const double (&sum)[4], int e)
{
    if constexpr (conjugated_a)
        return T(sum[e], -sum[2 + e]);
    else
        return T(sum[e], sum[2 + e]);
}
