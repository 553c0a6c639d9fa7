"""The calls by which a kernel is verified: what operands hold, how they lie, and how large an error may be.

Problems that are timed get three kinds of calls, each with fresh random inputs:

- *timed call*: the call that is timed (contiguous operands, alpha = 1, beta = 0) on small integers, C filled
  with NaN before. No partial sum rounds (`exactness`), so every element must be exact: one product left out,
  doubled or taken from a wrong place always shows, however large k is.
- *general call*: padded leading dimensions, alpha = -2, beta = 3 and a C of small integers; exact again.
- *precision*: the timed call on uniform values from [-1, 1), where the error may be as large as the theorem
  allows and no larger. That is much where k is large, so before it *late products* has all but SPARSE_TERMS products
  of each row be 0: its bound is as tight as that of a small problem, wherever along k the others stand.

Small problems get more calls: factors of every kind, operands that are aligned or not, one apart from the others,
values near overflow, subnormal ones, of very different sizes, and NaN, infinities and zeros of both signs.

Theorem (Jeannerod and Rump, "Improved error bounds for inner products in floating-point arithmetic", SIAM J.
Matrix Anal. Appl. 34, 2013): whatever the order of the sums, with or without fused multiply-adds, and absent
underflow and overflow, the computed inner product of k terms is within k u |a|^T |b| of the exact one, where u
is the unit roundoff, for every k. A term that is 0 costs nothing. The bound used is (k + 2) u (|A||B|): one u for the
scaling by alpha, one for the reference's own rounding. What else a product may cost:

- complex numbers: the real part of an inner product of k terms is a real one of 2 k terms, and so is the imaginary
  part. Each is held to the theorem by itself: 2 (k + 2) u times the sum of its terms' magnitudes. So a kernel that
  takes three real products for a complex one shows on small problems, where parts of very different size are tried.
- 16-bit elements: u is that of the sums, which are f32; the result is rounded once more, by 2**-8 or 2**-11 of its
  size. The exact checks expect the exact sum, so rounded.
- tensor cores: an addition is cut off, not rounded, so that it costs 2 u (`Dtype.product_roundings`). That the
  bound stays linear in k, whatever k, holds for such arithmetic too (Lange and Rump, "Error estimates for the
  summation of real numbers with application to floating-point summation", BIT 57, 2017).
- tf32 and 3xtf32: the operands are rounded before they are multiplied (`Dtype.operand_error`).

Where the exact result is infinite or NaN, the computed one must be the same. Of complex numbers and of f32 in fewer
bits, whose parts are mixed in a product, it is enough that it is not finite: each part that has such a term.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum

from tsm2_tune.generator.problem import MIN_PLUS, Problem
from tsm2_tune.generator.source import INDEX_BITS, SPARSE_TERMS
from tsm2_tune.tuner.verify.operands import Values

ALPHA, BETA = -2.0 + 1j, 3.0 - 1j  # of the general call: integers, so that the result stays exact
SMALL_BETA = 0.25 - 0.5j  # makes no finite C infinite; exact too
# Elements added to the leading dimensions.
NONE = {"A": 0, "B": 0, "C": 0}
ODD = {"A": 3, "B": 5, "C": 7}  # all different, none a vector's width
# One operand apart from the others: what a kernel asks of one leading dimension says nothing of another.
A_APART, OTHERS_APART = {"A": 3, "B": 0, "C": 0}, {"A": 0, "B": 5, "C": 8}
VECTORS = {"A": 4, "B": 8, "C": 8}  # whole vectors, so that operands stay aligned where they are so without
ALIGNED = dict.fromkeys("ABC", 0)  # where the operands begin; on a host they end at a page's end otherwise
LONG = 2**16  # past which a 16-bit number cannot count
LONG_SUMS = 2**20  # products: of more a block takes a second
LONG_LINES = {"A": LONG + 3, "B": LONG + 5, "C": LONG + 7}
LONG_WHOLE_LINES = {"A": LONG + 8, "B": LONG + 16, "C": LONG + 24}
# Factors of scaled calls: of either sign, above and below 1/2, neither a multiple of a power of two nor a float where
# the type is double, huge, tiny, 0, 1 and -1; complex ones with both parts. Real types take the real parts.
SCALARS = (
    (-0.7 + 0.3j, 1.0 + 0j),
    (1 / 3 - 0.9j, -0.3 + 0.7j),
    (1.0 + 0j, -1.0 + 0j),
    (-1.0 + 0j, 0.1 + 0.2j),
    (2.6 + 1.1j, -1.7 + 0.4j),
    (0j, 0.6 - 0.1j),
    (1.3e-20 - 0.7e-20j, 0j),
    (3.7 - 2.9j, 0j),
    (-1.7e15 + 0.9e15j, 0.2 - 0.6j),
    (0.1 + 0.3j, 3.3e10 + 1.1e10j),
    (-0.9 - 0.2j, -7e-9 + 3e-9j),
)
SCALING_ROUNDINGS = 5  # of a result that is scaled, and of its reference
ABOVE_LEAST = 9  # exponent of factors that are subnormal, above that of the least number
PRECISE = 5  # of the scaled calls one in so many is tried where errors are least: in whole vectors and in none
RARITY_OF_C = 3  # every eighth element of a special C is NaN, infinite or 3
# The powers of two that small parts are multiplied by. JUST_APART is where three real products, computed in f64, lose
# of c64 what its bound asks: of k products they lose up to (2 k + 3) 2**-53 of the large parts, and the bound is
# (2 k + 4) 2**-24 of the small ones, A's and B's together. So down to 2**-29 no values break it. Those that are tried
# here do so from 2**-31 down, where k is 1: of more products the rounding errors mostly cancel.
APART, JUST_APART = {"A": -40, "B": -40}, {"A": -40, "B": -31}
FAR_APART = {"A": -50, "B": -50}  # of few elements, whose bound leaves nothing to how the errors fall


class Magnitude(Enum):
    """How large the integers are that A is filled with, after a power of two that changes nothing else.

    Where A is B too, the power is of both: that of a product is as near to what it should be as an even one can be.
    """

    ORDINARY = "ordinary"
    LARGE = "large"  # sums as near to overflow as none can reach it
    LEAST = "least"  # multiples of the least number above 0, most of them subnormal

    def exponent(self, problem: Problem) -> int:
        """Return the power of two that they are multiplied by."""
        if self is Magnitude.ORDINARY:
            return 0
        least, past_largest = problem.dtype.exponents
        largest_sum = 2 * 2 * problem.k * problem.dtype.parts  # of the magnitudes of k products
        factors = 2 if problem.is_gram else 1
        large, smallest = (past_largest - 1 - largest_sum.bit_length()) // factors, -(-least // factors)
        return large if self is Magnitude.LARGE else smallest


@dataclass(frozen=True, slots=True)
class Check:
    """One call of the kernel and what is expected of it. Of alpha and beta real types take the real part."""

    name: str
    values: Values
    padding: dict[str, int]
    alpha: complex
    beta: complex
    roundings: int = 2  # besides those of the k products and sums, of the result and of its reference
    magnitude: Magnitude = Magnitude.ORDINARY  # of C's integers, and of those of the operand that is `sized`
    sized: str = "A"
    small: dict[str, int] = field(default_factory=dict)  # operand -> exponent of its small parts
    apart: dict[str, Values] = field(default_factory=dict)  # operand -> its values, where they are others
    past: dict[str, int] = field(default_factory=dict)  # operand -> elements of a line past whole vectors
    loose: bool = False  # whether an infinite result may be NaN: kernels may scale parts of a sum
    shift: dict[str, int] = field(default_factory=dict)  # operand -> elements past a multiple of 16 bytes
    at_start: bool = False  # of their buffers, before which a host faults; else at their ends, behind which it does

    @property
    def is_sparse(self) -> bool:
        """Whether all but a few products of each element are 0."""
        return self.apart.get("A") is Values.SPARSE

    def exponent(self, name: str, problem: Problem) -> int:
        """Return the parameter of this operand's filling.

        It is a power of two for integers and small parts, the rarity of special values, and for a sparse operand
        whether all of its lines are alike.
        """
        if self.values is Values.SPECIAL:
            products = 2 * problem.k * problem.dtype.parts  # so that about half of the results are numbers
            return RARITY_OF_C if name == "C" else products.bit_length()
        if self.is_sparse:
            return int(problem.is_gram)
        if self.values is not Values.INTEGERS:
            return self.small.get(name, 0)
        exponent = self.magnitude.exponent(problem)
        if name == "C":  # of the size of a product
            return exponent * (2 if problem.is_gram else 1)
        return exponent if name == self.sized or problem.is_gram or is_min_plus(problem) else 0


CHECKS = (
    Check("timed call", Values.INTEGERS, padding=NONE, alpha=1.0, beta=0.0),
    Check("general call", Values.INTEGERS, padding=ODD, alpha=ALPHA, beta=BETA),
    Check("late products", Values.UNIFORM, padding=NONE, alpha=1.0, beta=0.0, apart={"A": Values.SPARSE}),
    # Last, so that the operands lie and hold what the timing needs.
    Check("precision", Values.UNIFORM, padding=NONE, alpha=1.0, beta=0.0),
)
# Where all lines are whole vectors kernels have loads and stores of their own.
SCALED_CALLS = tuple(
    Check(f"scaled call {number}", Values.WIDE, lines, alpha, beta, roundings=SCALING_ROUNDINGS)
    for lines in (VECTORS, ODD)
    for number, (alpha, beta) in enumerate(SCALARS, 1)
)
# Factors that a kernel may treat apart, in all pairs: it must not mistake one for another.
UNITS = tuple(
    Check(f"alpha {alpha}, beta {beta}", Values.INTEGERS, lines, alpha, beta)
    for lines in (VECTORS, ODD)
    for alpha in (1.0, 0.0, -1.0)
    for beta in (0.0, -1.0, 1.0)
)
OVERWRITING = Check("overwriting call", Values.INTEGERS, padding=VECTORS, alpha=ALPHA, beta=0.0, shift=ALIGNED)
UNALIGNED = tuple(
    Check(f"{name} unaligned", Values.INTEGERS, {**VECTORS, name: 0}, 1.0, 1.0, shift={**ALIGNED, name: 1})
    for name in "ABC"
)
# A leading dimension that is no multiple of a vector, or of half a vector, while all else is aligned.
LINES_APART = tuple(
    Check(f"lines of {name} apart", Values.INTEGERS, VECTORS, ALPHA, 0.0, past={name: past}, shift=ALIGNED)
    for past in (1, 2)
    for name in "ABC"
)
UNUSUAL_FACTORS = tuple(
    Check(f"{what} {factor}", Values.INTEGERS, lines, alpha, beta, 2, magnitude, loose=True)
    for lines, sign in ((ODD, 1), (VECTORS, -1))
    for what, factor, alpha, beta, magnitude in (
        ("alpha", "NaN", complex(math.nan, math.nan), BETA, Magnitude.ORDINARY),
        ("alpha where C is not read", "NaN", complex(math.nan, math.nan), 0.0, Magnitude.ORDINARY),
        ("beta", "NaN", ALPHA, complex(math.nan, math.nan), Magnitude.ORDINARY),
        # Of the least numbers, as no finite alpha makes infinite ones of them.
        ("alpha", "infinite", complex(-sign * math.inf, sign * math.inf), 0.0, Magnitude.LEAST),
        ("alpha of a C that is read", "infinite", complex(sign * math.inf, sign * math.inf), BETA, Magnitude.LEAST),
        ("beta", "infinite", ALPHA, complex(sign * math.inf, -sign * math.inf), Magnitude.ORDINARY),
    )
)
SPECIAL_VALUES = (
    Check("special values", Values.SPECIAL, padding=VECTORS, alpha=1.0, beta=0.0, shift=ALIGNED),
    Check("special values of C too", Values.SPECIAL, padding=ODD, alpha=ALPHA, beta=BETA),
    Check("special values of C too", Values.SPECIAL, padding=VECTORS, alpha=ALPHA, beta=SMALL_BETA, shift=ALIGNED),
    # What is no NaN is overwritten too.
    Check("special C overwritten", Values.SPECIAL, VECTORS, 1.0, 0.0, apart={"C": Values.SPECIAL}, shift=ALIGNED),
    Check("special C overwritten", Values.SPECIAL, ODD, 1.0, 0.0, apart={"C": Values.SPECIAL}),
)
SIZES = tuple(
    (
        Check("large values", Values.INTEGERS, OTHERS_APART, 1.0, beta, 2, Magnitude.LARGE, sized, shift=ALIGNED),
        Check("subnormal values", Values.INTEGERS, A_APART, 1.0, beta, 2, Magnitude.LEAST, sized, shift=ALIGNED),
    )
    for sized in "AB"
    for beta in (0.0, 1.0)
)
# Of the semiring (min, +), where every result is exact, whatever the values. Of numbers from [-1, 1) any product may
# be the least, so that one left out shows somewhere. With these alpha and beta C[i, j] is less in one place, the
# product in another; neither is a float where the type is double.
SHIFT, SHIFT_C = 1.7, -0.3
MIN_PLUS_CHECKS = (
    Check("timed call", Values.UNIFORM, padding=NONE, alpha=MIN_PLUS.one, beta=MIN_PLUS.zero),
    Check("general call", Values.UNIFORM, padding=ODD, alpha=SHIFT, beta=SHIFT_C),
    # Last, so that the operands lie as the timing needs them, and hold what graphs have.
    Check("path lengths", Values.LENGTHS, padding=NONE, alpha=MIN_PLUS.one, beta=MIN_PLUS.zero),
)
MIN_PLUS_OVERWRITING = Check("overwriting call", Values.UNIFORM, VECTORS, SHIFT, MIN_PLUS.zero, shift=ALIGNED)
MIN_PLUS_PROBE_CHECKS = (
    *MIN_PLUS_CHECKS,
    MIN_PLUS_OVERWRITING,
    *(
        Check(f"{name} unaligned", Values.UNIFORM, {**VECTORS, name: 0}, 0.0, 0.0, shift={**ALIGNED, name: 1})
        for name in "ABC"
    ),
    Check("NaN with a sign", Values.SIGNED_NANS, padding=NONE, alpha=MIN_PLUS.one, beta=MIN_PLUS.one),
    Check("infinite alpha", Values.LENGTHS, padding=NONE, alpha=-MIN_PLUS.zero, beta=MIN_PLUS.zero),
    Check("infinite beta", Values.LENGTHS, padding=NONE, alpha=MIN_PLUS.one, beta=-MIN_PLUS.zero),
    Check("accumulating call", Values.LENGTHS, padding=VECTORS, alpha=MIN_PLUS.one, beta=MIN_PLUS.one),
    Check("infinities and NaN", Values.UNUSUAL, padding=OTHERS_APART, alpha=SHIFT, beta=SHIFT_C),
    # Kernels may take numbers without a sign apart.
    *(Check(f"signs in {name}", Values.LENGTHS, NONE, SHIFT, SHIFT_C, apart={name: Values.UNIFORM}) for name in "AB"),
    Check("few signs", Values.FEW_SIGNS, padding=NONE, alpha=SHIFT, beta=SHIFT_C),
    Check("no paths", Values.UNUSUAL, padding=A_APART, alpha=MIN_PLUS.one, beta=MIN_PLUS.zero),
    *(
        Check(f"{size.value} values", Values.INTEGERS, padding=NONE, alpha=0.0, beta=math.inf, magnitude=size)
        for size in (Magnitude.LARGE, Magnitude.LEAST)
    ),
)
# A NaN is no length: of alpha it leaves nothing of the product, of beta nothing of C.
MIN_PLUS_FACTORS = (
    Check("alpha NaN", Values.LENGTHS, padding=VECTORS, alpha=math.nan, beta=MIN_PLUS.one),
    Check("beta NaN", Values.LENGTHS, padding=ODD, alpha=MIN_PLUS.one, beta=math.nan),
)
COMPLEX_CHECKS = (
    # Factors without a real part, which kernels must not take for 0.
    Check("imaginary call", Values.INTEGERS, padding=VECTORS, alpha=2j, beta=-1j),
    # The result's imaginary parts are sums of small terms, which must not come as differences of large ones.
    Check("small real parts", Values.SMALL_REAL, padding=NONE, alpha=1.0, beta=0.0, small=APART),
    Check("small imaginary parts", Values.SMALL_IMAGINARY, padding=NONE, alpha=1.0, beta=0.0, small=JUST_APART),
    Check("small parts at the edge", Values.SMALL_AT_EDGE, padding=NONE, alpha=1.0, beta=0.0, small=FAR_APART),
)


def is_min_plus(problem: Problem) -> bool:
    return problem.dtype.semiring is MIN_PLUS


def subnormal_factors(problem: Problem) -> tuple[Check, ...]:
    """Calls with factors that are subnormal, and numbers so large that the results are exact."""
    factor = 2.0 ** (problem.dtype.sum.exponents[0] + ABOVE_LEAST)
    return tuple(
        Check("subnormal factors", Values.INTEGERS, ODD, factor, beta, magnitude=Magnitude.LARGE)
        for beta in (0.0, factor)
    )


def checks_of(problem: Problem) -> tuple[Check, ...]:
    """Return the calls that verify a kernel on its problem.

    The last one leaves the operands as the timing needs them.
    """
    return MIN_PLUS_CHECKS if is_min_plus(problem) else CHECKS


def probe_checks(problem: Problem, number: int) -> tuple[Check, ...]:
    """Return the calls that verify a kernel in a trial on a small problem; `number` counts these problems from 0.

    Each problem gets one of each kind of call with other factors, values or lines; the first gets some more factors.
    """
    if is_min_plus(problem):
        return MIN_PLUS_PROBE_CHECKS
    scaled = SCALED_CALLS[: len(SCALARS) : 3] if number == 0 else ()
    kinds = (SCALED_CALLS[len(SCALARS) :], UNALIGNED, LINES_APART, UNITS + UNUSUAL_FACTORS, SPECIAL_VALUES)
    in_turns = [kind[number % len(kind)] for kind in kinds]
    sizes = SIZES[number % len(SIZES)]
    complex_checks = COMPLEX_CHECKS * problem.dtype.is_complex
    return (*CHECKS[:2], OVERWRITING, *sizes, *scaled, *in_turns, *complex_checks, CHECKS[-1])


def every_check(problem: Problem) -> tuple[Check, ...]:
    """Return all that a kernel is called for on small problems."""
    if is_min_plus(problem):
        return (*MIN_PLUS_PROBE_CHECKS, *MIN_PLUS_FACTORS)
    sizes = (check for pair in SIZES for check in pair)
    complex_checks = COMPLEX_CHECKS * problem.dtype.is_complex
    ordinary = (*CHECKS[:2], OVERWRITING, *UNALIGNED, *LINES_APART, *sizes, *SCALED_CALLS, *UNITS)
    unusual = (*UNUSUAL_FACTORS, *subnormal_factors(problem), *SPECIAL_VALUES)
    return (*ordinary, *unusual, *complex_checks, CHECKS[-1])


def overwriting(problem: Problem) -> Check:
    """Return a call of aligned operands in whole vectors that does not read C."""
    return MIN_PLUS_OVERWRITING if is_min_plus(problem) else OVERWRITING


def first_checks(problem: Problem) -> tuple[Check, ...]:
    """Return the calls with operands at the starts of their buffers, before which a host faults.

    One call uses whole vectors, the other none.
    """
    return tuple(replace(one, at_start=True) for one in (overwriting(problem), checks_of(problem)[0]))


def precise_checks(problem: Problem) -> tuple[Check, ...]:
    """Return the calls for problems whose sums have one product, where the error bound is the smallest."""
    if is_min_plus(problem):
        return checks_of(problem)[1:2]
    return tuple(one for one in SCALED_CALLS if one.alpha != 0)[::PRECISE]


def sweep_checks(problem: Problem, number: int) -> tuple[Check, ...]:
    """Return the calls for one of many small problems with remainders.

    One call uses whole vectors, one none, and the third is another one for each `number`.
    """
    every = every_check(problem)
    return (overwriting(problem), checks_of(problem)[1], every[number % len(every)])


def deep_checks(problem: Problem) -> tuple[Check, ...]:
    """Return the calls for a problem whose loop along k has many iterations.

    One call uses whole vectors, one none, and one has contiguous lines from an aligned address on.
    """
    return (*sweep_checks(problem, 0)[:2], replace(checks_of(problem)[0], shift=ALIGNED))


def long_checks(problem: Problem, bits: int) -> tuple[Check, ...]:
    """Return the calls for a problem with an extent of more than 16 bits.

    If k is so long that a block takes a second, there is one call: in whole vectors with 32-bit indices, without
    vectors with 64-bit ones. A 16-bit counter overflows with either width.
    """
    every = (overwriting(problem), *checks_of(problem)[1:3])
    if problem.k < LONG_SUMS:
        return every
    return every[:1] if bits == INDEX_BITS[0] else every[1:2]


def with_padding(check: Check, padding: dict[str, int]) -> Check:
    """Return the check with leading dimensions that are so much longer."""
    return replace(check, padding=padding)


def error_coefficient(problem: Problem, check: Check) -> float:
    """The error allowed to a sum, relative to |alpha||A||B| + |beta||C|: (k + roundings) u, or what costs more."""
    dtype = problem.dtype
    terms = min(problem.k, SPARSE_TERMS) if check.is_sparse else problem.k
    sums = dtype.parts * (dtype.product_roundings * terms + check.roundings) * dtype.sum.unit_roundoff
    return dtype.operand_error + (1 + dtype.operand_error) * sums


class Exactness(IntEnum):
    """Which sums of products of integers stay exact; the numbers are those of the support kernels."""

    NONE = 0
    ALL = 1
    OFF_DIAGONAL = 2


MIXES_PARTS = 4  # added to these: an infinite result may be NaN, and the other way round


def exactness(problem: Problem) -> Exactness:
    """Where no partial sum of k products of the integers can be rounded, but for a chance below 1e-20 for each.

    A part of a complex sum has 2 k products.

    The products are independent, of mean 0 and at most 4 in size, so that a sum of k of them exceeds s with a
    probability of at most 2 exp(-s^2 / (32 k)) (Hoeffding 1963), whatever the order in which a kernel adds them up.
    On the diagonal of a Gram matrix they are squares, whose sums are bounded by their number alone.
    """
    dtype = problem.dtype
    if dtype.semiring.is_exact:
        return Exactness.ALL
    terms = problem.k * dtype.parts
    largest = 2.0 ** (dtype.sum.significand_bits - 3)  # that alpha times a sum and beta C may bring to 2**p
    if largest**2 / (32 * terms) <= math.log(2e20):
        return Exactness.NONE
    return Exactness.OFF_DIAGONAL if problem.is_gram and 4 * terms > largest else Exactness.ALL


def expected_exactness(problem: Problem, check: Check) -> int:
    """Return how the results of this call are compared, as the support kernels number it."""
    is_exact = check.values in (Values.INTEGERS, Values.SPECIAL) or problem.dtype.semiring.is_exact
    mixes = MIXES_PARTS if problem.dtype.operand_error or check.loose else 0
    return (exactness(problem) if is_exact else Exactness.NONE) + mixes
