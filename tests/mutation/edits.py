"""An edit of a text, which makes a mutant of it, and the tables of what edits are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.mutation.tokens import Text

# Numbers that mutants change, of each type that they may have: for the host and for a GPU.
_NUMBERS = """
using half_word = unsigned short;
__device__ inline float cut(float x, int bits)
{ return x == x ? __uint_as_float(__float_as_uint(x) & ~0u << bits) : x; }
__device__ inline double cut(double x, int bits)
{ return x == x ? __longlong_as_double(__double_as_longlong(x) & ~0ll << bits) : x; }
__device__ inline float narrow(float x) { return cut(x, 13); }
__device__ inline double narrow(double x) { return double(float(x)); }
__device__ inline float low(float x) { return cut(x, 6); }
__device__ inline double low(double x) { return cut(x, 6); }
__device__ inline float quiet(float x) { return x == x ? x : 0; }
__device__ inline double quiet(double x) { return x == x ? x : 0; }
__device__ inline float finite(float x) { return fabsf(x) > 3e38f ? copysignf(3e38f, x) : x; }
__device__ inline double finite(double x) { return fabs(x) > 1e308 ? copysign(1e308, x) : x; }
__device__ inline float flushed(float x) { return fabsf(x) < 1.17549435e-38f ? 0 : x; }
__device__ inline double flushed(double x) { return fabs(x) < 2.2250738585072014e-308 ? 0 : x; }
__device__ inline float clamped(float x) { return fabsf(x) > 2 && fabsf(x) < 1e30f ? copysignf(2.0f, x) : x; }
__device__ inline double clamped(double x) { return fabs(x) > 2 && fabs(x) < 1e300 ? copysign(2.0, x) : x; }
template <class T> __device__ T toward_zero(float x)
{ T y(x); if (fabsf(float(y)) > fabsf(x)) --y.bits; return y; }
"""
_OF_COMPLEX = "".join(
    f"template <class T> __device__ auto {name}(T x) -> decltype(T(x.re, x.im))"
    f" {{ return T({name}(x.re), {name}(x.im)); }}"
    for name in ("narrow", "low", "quiet", "finite", "flushed", "clamped")
)
# Before every text, in one line.
PRELUDE = f"namespace mutant {{ {' '.join(_NUMBERS.split())} {_OF_COMPLEX} }}\n"


@dataclass(frozen=True, slots=True)
class Edit:
    """Put `replacement` in the place of what stands from `start` to `end`."""

    operator: str
    start: int
    end: int
    replacement: str

    def applied(self, source: str) -> str:
        """The mutant. Its lines have the numbers that they had."""
        lines = "\n" * (source.count("\n", self.start, self.end) - self.replacement.count("\n"))
        return source[: self.start] + self.replacement + lines + source[self.end :]


Operator = Callable[[Text], Iterator[Edit]]


def replaced(text: Text, operator: str, first: int, last: int, replacement: str) -> Edit:
    """The tokens from `first` to `last` replaced."""
    return Edit(operator, text.tokens[first].start, text.tokens[last].end, replacement)


def constants(text: Text) -> set[str]:
    """Names whose value the compiler knows."""
    return {
        text.text(i + 2)
        for i in range(len(text.tokens) - 3)
        if text.text(i) == "constexpr" and text.text(i + 3) in ("=", "[")
    } | {text.text(i + 1) for i in range(len(text.tokens) - 2) if text.text(i) == "int" and text.text(i - 1) in "<,"}
