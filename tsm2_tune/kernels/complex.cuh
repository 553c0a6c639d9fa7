#pragma once
// Complex numbers. A product is an expression template, evaluated when it is used: sum += a * b compiles to four
// fused multiply-adds.
template <class Real> struct Pair;
template <> struct Pair<float> { using type = float2; };
template <> struct Pair<double> { using type = double2; };

template <class Real> struct alignas(2 * sizeof(Real)) Complex {
    Real re, im;
    Complex() = default;
    __device__ __forceinline__ Complex(Real re, Real im = 0) : re(re), im(im) {}

    struct product;
    __device__ __forceinline__ Complex &operator+=(Complex x)
    {
        re += x.re;
        im += x.im;
        return *this;
    }
    __device__ __forceinline__ Complex &operator+=(product x)
    {
        re += x.a.re * x.b.re;
        re -= x.a.im * x.b.im;
        im += x.a.re * x.b.im;
        im += x.a.im * x.b.re;
        return *this;
    }
    friend __device__ __forceinline__ product operator*(Complex a, Complex b) { return { a, b }; }
    friend __device__ __forceinline__ Complex operator+(Complex a, product b) { return a += b; }
    friend __device__ __forceinline__ bool operator==(Complex a, Real b) { return a.re == b && a.im == 0; }
    friend __device__ __forceinline__ bool operator!=(Complex a, Real b) { return !(a == b); }
    friend __device__ __forceinline__ Complex conjugate(Complex x) { return { x.re, -x.im }; }
};
template <class Real> struct Complex<Real>::product {
    Complex a, b;
    __device__ __forceinline__ operator Complex() const
    {
        return { a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re };
    }
};
using complex64 = Complex<float>;
using complex128 = Complex<double>;

// CUDA's cached loads, stores and shuffles for complex numbers.
template <class Real> __device__ __forceinline__ Complex<Real> __ldcs(const Complex<Real> *from)
{
    const typename Pair<Real>::type parts = __ldcs(reinterpret_cast<const typename Pair<Real>::type *>(from));
    return { parts.x, parts.y };
}
template <class Real> __device__ __forceinline__ Complex<Real> __ldcg(const Complex<Real> *from)
{
    const typename Pair<Real>::type parts = __ldcg(reinterpret_cast<const typename Pair<Real>::type *>(from));
    return { parts.x, parts.y };
}
template <class Real> __device__ __forceinline__ void __stcs(Complex<Real> *to, Complex<Real> x)
{
    __stcs(reinterpret_cast<typename Pair<Real>::type *>(to), typename Pair<Real>::type{x.re, x.im});
}
template <class Real> __device__ __forceinline__ void __stcg(Complex<Real> *to, Complex<Real> x)
{
    __stcg(reinterpret_cast<typename Pair<Real>::type *>(to), typename Pair<Real>::type{x.re, x.im});
}
template <class Real> __device__ __forceinline__ Complex<Real> __shfl_xor_sync(
    unsigned mask, Complex<Real> x, int lane_mask)
{
    const Real re = __shfl_xor_sync(mask, x.re, lane_mask);
    const Real im = __shfl_xor_sync(mask, x.im, lane_mask);
    return { re, im };
}
