#pragma once
// Complex products on the f64 tensor cores, which multiply real matrices. Rows and columns of fragments may be
// permuted if A, B and C agree. Here rows g of the sum are the real parts of 8 rows of C, and rows g + 8 the
// imaginary parts. Along k, t and t + 4 are the real and the imaginary part of an element of B. So a lane has one
// element of B as it lies in memory, and one of A as a 2 x 2 matrix of real numbers:
//     re -im                                               re  im
//     im  re   or, where A or B alone is conjugated,       im -re   as if B were.
// Where A is conjugated, the sum is the conjugate of C.
__device__ __forceinline__ double flipped(double x, unsigned long long bits)
{
    return __longlong_as_double(__double_as_longlong(x) ^ bits);
}

// Return the matrix, column by column. Each number must look new to the compiler: if one number were used in two
// places, it would copy all four for every product. So they are XORed with a zero that the compiler does not know.
template <bool one_conjugated>
__device__ __forceinline__ void as_matrix(double *a, double re, double im)
{
    const unsigned long long none = threadIdx.z | (unsigned long long)threadIdx.z << 32, sign = none ^ 1ull << 63;
    a[0] = re;
    a[1] = im;
    a[2] = flipped(im, one_conjugated ? none : sign);
    a[3] = flipped(re, one_conjugated ? sign : none);
}

// Return a lane's complex sum in row g and column 2 t + e.
template <class T, bool conjugated_a>
__device__ __forceinline__ T complex_sum(const double (&sum)[4], int e)
{
    if constexpr (conjugated_a)
        return T(sum[e], -sum[2 + e]);
    else
        return T(sum[e], sum[2 + e]);
}
