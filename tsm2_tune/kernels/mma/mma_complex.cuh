#pragma once
// Complex products on the f64 tensor cores, which multiply real matrices. With g = lane / 4 and t = lane % 4, row g
// of the mma's sum is the real part of row g of C, and row g + 8 the imaginary part. Along k, index t is the real
// part of an element of B, and t + 4 its imaginary part. So a lane's fragment of B is one complex element, in
// memory's order. Its fragment of A is one complex element, as a 2 x 2 matrix of real numbers:
//     re -im                                               re  im
//     im  re   or, if only one of A and B is conjugated,   im -re   (computed as if B were conjugated).
// If A is conjugated, the sum is the conjugate of C.
__device__ __forceinline__ double flipped(double x, unsigned long long bits)
{
    return __longlong_as_double(__double_as_longlong(x) ^ bits);
}

// Store this 2 x 2 matrix in `a`, column by column. If the compiler saw that its numbers are equal up to their signs,
// it would copy all four for every mma. So the second column is XORed with a zero that the compiler cannot deduce.
template <bool one_conjugated>
__device__ __forceinline__ void as_matrix(double *a, double re, double im)
{
    const unsigned long long none = threadIdx.z | (unsigned long long)threadIdx.z << 32, sign = none ^ 1ull << 63;
    a[0] = re;
    a[1] = im;
    a[2] = flipped(im, one_conjugated ? none : sign);
    a[3] = flipped(re, one_conjugated ? sign : none);
}

// Return this lane's element of C in row g and column 2 t + e, from its four sums.
template <class T, bool conjugated_a>
__device__ __forceinline__ T complex_sum(const double (&sum)[4], int e)
{
    if constexpr (conjugated_a)
        return T(sum[e], -sum[2 + e]);
    else
        return T(sum[e], sum[2 + e]);
}
