"""The allowed error of each element of a result, and the results that must be exact.

Theorem (Jeannerod and Rump, "Improved error bounds for inner products in floating-point arithmetic", SIAM J.
Matrix Anal. Appl. 34, 2013): without underflow and overflow, the computed inner product of k terms differs from the
exact one by at most k u |a|^T |b|, where u is the unit roundoff. This holds for every k and any order of the
additions, with or without fused multiply-adds. A term that is 0 adds no error. The bound used is (k + 2) u (|A||B|):
one more u for the scaling by alpha, and one for the rounding of the reference. Some types need a larger bound:

- complex numbers: the real part of an inner product of k terms is a real inner product of 2 k terms, and so is the
  imaginary part. Each part has its own bound, 2 (k + 2) u times the sum of the magnitudes of its terms. So a kernel
  that computes a complex product with three real products fails on small problems whose real and imaginary parts have
  very different sizes.
- bf16 and f16: the sums are computed in f32, so u is the unit roundoff of f32. The result is rounded once more, with
  a relative error of 2**-8 or 2**-11. Exact checks expect the exact sum after this rounding.
- tensor cores: an addition truncates, so its error is 2 u (`Dtype.product_roundings`). The bound is still linear in k
  (Lange and Rump, "Error estimates for the summation of real numbers with application to
  floating-point summation", BIT 57, 2017).
- tf32 and 3xtf32: the operands are rounded before they are multiplied (`Dtype.operand_error`).

If the exact result is infinite or NaN, the computed result must be equal to it. Exception: complex types, tf32 and
3xtf32 compute one number from several parts of the operands. If a term of such a number is not finite, any
result that is not finite is accepted.
"""

from __future__ import annotations

import math
from enum import IntEnum

from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.source import SPARSE_TERMS
from tsm2_tune.tuner.verify.checks import Check
from tsm2_tune.tuner.verify.operands import Values


def error_coefficient(problem: Problem, check: Check) -> float:
    """Return the allowed error of an element of C as a multiple of |alpha||A||B| + |beta||C|."""
    dtype = problem.dtype
    terms = min(problem.k, SPARSE_TERMS) if check.is_sparse else problem.k
    sums = dtype.parts * (dtype.product_roundings * terms + check.roundings) * dtype.sum.unit_roundoff
    return dtype.operand_error + (1 + dtype.operand_error) * sums


class Exactness(IntEnum):
    """The elements of an integer product that must be exact. The CUDA comparison kernels use these numbers too."""

    NONE = 0
    ALL = 1
    OFF_DIAGONAL = 2


MIXES_PARTS = 4  # added to an Exactness: the result may be NaN for infinity, and infinity for NaN


def exactness(problem: Problem) -> Exactness:
    """Return which elements of a product of small random integers are computed without rounding.

    The probability that a partial sum is rounded is below 1e-20. The products are independent, have mean 0 and a
    magnitude of at most 4, so a sum of k products exceeds s with a probability of at most 2 exp(-s^2 / (32 k))
    (Hoeffding 1963), in any order of the additions. The real part of a complex sum has 2 k products,
    and so has the imaginary part. On the diagonal of a Gram matrix the products are squares, so their sum is bounded
    only by 4 k.
    """
    dtype = problem.dtype
    if dtype.semiring.is_exact:
        return Exactness.ALL
    terms = problem.k * dtype.parts
    largest = 2.0 ** (dtype.sum.significand_bits - 3)  # alpha * sum + beta * C is then below 2**significand_bits
    if largest**2 / (32 * terms) <= math.log(2e20):
        return Exactness.NONE
    return Exactness.OFF_DIAGONAL if problem.is_gram and 4 * terms > largest else Exactness.ALL


def expected_exactness(problem: Problem, check: Check) -> int:
    """Return the mode of the comparison kernel: an Exactness, plus MIXES_PARTS if it accepts NaN for infinity."""
    is_exact = check.values in (Values.INTEGERS, Values.SPECIAL) or problem.dtype.semiring.is_exact
    mixes = MIXES_PARTS if problem.dtype.operand_error or check.loose else 0
    return (exactness(problem) if is_exact else Exactness.NONE) + mixes
