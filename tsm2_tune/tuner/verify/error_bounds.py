"""The error allowed to each element of a result, and which results must be exact.

Theorem (Jeannerod and Rump, "Improved error bounds for inner products in floating-point arithmetic", SIAM J.
Matrix Anal. Appl. 34, 2013): without underflow and overflow, the computed inner product of k terms is within
k u |a|^T |b| of the exact one. This holds for every k and any order of the additions, with or without fused
multiply-adds; u is the unit roundoff. A term that is 0 adds no error. The bound used is (k + 2) u (|A||B|): one u for
the scaling by alpha, one for the rounding of the reference. Some types need more:

- complex numbers: the real part of an inner product of k terms is a real inner product of 2 k terms, and so is the
  imaginary part. Each part has its own bound, 2 (k + 2) u times the sum of its terms' magnitudes. So a kernel that
  computes a complex product by three real ones fails on small problems with parts of very different sizes.
- 16-bit elements: u is that of f32, in which the sums are computed. The result is rounded once more, by 2**-8 or
  2**-11 of its size. The exact checks expect the exact sum after this rounding.
- tensor cores: an addition truncates, so its error is 2 u (`Dtype.product_roundings`). The bound stays linear in k
  for this arithmetic too (Lange and Rump, "Error estimates for the summation of real numbers with application to
  floating-point summation", BIT 57, 2017).
- tf32 and 3xtf32: the operands are rounded before they are multiplied (`Dtype.operand_error`).

If the exact result is infinite or NaN, the computed result must be equal to it. Complex types, tf32 and 3xtf32 mix
the parts of their operands, so there any result that is not finite is accepted in a part with such a term.
"""

from __future__ import annotations

import math
from enum import IntEnum

from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.source import SPARSE_TERMS
from tsm2_tune.tuner.verify.checks import Check
from tsm2_tune.tuner.verify.operands import Values


def error_coefficient(problem: Problem, check: Check) -> float:
    """Return the error allowed, relative to |alpha||A||B| + |beta||C|: (k + roundings) u, or more for some types."""
    dtype = problem.dtype
    terms = min(problem.k, SPARSE_TERMS) if check.is_sparse else problem.k
    sums = dtype.parts * (dtype.product_roundings * terms + check.roundings) * dtype.sum.unit_roundoff
    return dtype.operand_error + (1 + dtype.operand_error) * sums


class Exactness(IntEnum):
    """The exact sums among sums of products of integers. The support kernels use the same numbers."""

    NONE = 0
    ALL = 1
    OFF_DIAGONAL = 2


MIXES_PARTS = 4  # added to an Exactness: a result may be NaN instead of infinite, and infinite instead of NaN


def exactness(problem: Problem) -> Exactness:
    """Return for which elements no partial sum of products of the integers is rounded.

    The probability that a partial sum is rounded after all is below 1e-20. The products are independent, of mean 0
    and at most 4 in size, so a sum of k of them exceeds s with a probability of at most 2 exp(-s^2 / (32 k))
    (Hoeffding 1963), in any order of the additions. A part of a complex sum has 2 k products. On the diagonal of a
    Gram matrix the products are squares, whose sums are bounded only by their number.
    """
    dtype = problem.dtype
    if dtype.semiring.is_exact:
        return Exactness.ALL
    terms = problem.k * dtype.parts
    largest = 2.0 ** (dtype.sum.significand_bits - 3)  # alpha times the sum plus beta C then stays below 2**p
    if largest**2 / (32 * terms) <= math.log(2e20):
        return Exactness.NONE
    return Exactness.OFF_DIAGONAL if problem.is_gram and 4 * terms > largest else Exactness.ALL


def expected_exactness(problem: Problem, check: Check) -> int:
    """Return the number that tells the support kernels how to compare the results of this call."""
    is_exact = check.values in (Values.INTEGERS, Values.SPECIAL) or problem.dtype.semiring.is_exact
    mixes = MIXES_PARTS if problem.dtype.operand_error or check.loose else 0
    return (exactness(problem) if is_exact else Exactness.NONE) + mixes
