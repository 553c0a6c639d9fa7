"""The calls that verify a kernel: values of the operands, their layout in memory, alpha and beta.

Problems that are timed get four calls, each with fresh random inputs:

- *timed call*: the call that is timed (contiguous operands, alpha = 1, beta = 0) on small integers, with C filled
  with NaN before. No partial sum rounds (`exactness`), so every element must be exact. A product that is left out,
  doubled or taken from a wrong place always shows, however large k is.
- *general call*: padded leading dimensions, alpha = -2, beta = 3 and a C of small integers; exact again.
- *late products*: all but SPARSE_TERMS products of each row are 0, so the error bound is as tight as that of a small
  problem, wherever along k the nonzero products are.
- *precision*: the timed call on uniform values from [-1, 1), with an error up to the bound (`error_bounds.py`), which
  is wide if k is large.

Small problems get more calls: all kinds of alpha and beta, aligned and unaligned operands, values near overflow,
subnormal values, values of very different sizes, NaN, infinities and zeros of both signs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import Enum

from tsm2_tune.generator.problem import MIN_PLUS, Problem
from tsm2_tune.generator.source import INDEX_BITS
from tsm2_tune.tuner.verify.operands import Values

ALPHA, BETA = -2.0 + 1j, 3.0 - 1j  # of the general call: integers, so that the result stays exact
SMALL_BETA = 0.25 - 0.5j  # makes no finite C infinite; exact too
# Elements added to the leading dimensions.
NONE = {"A": 0, "B": 0, "C": 0}
ODD = {"A": 3, "B": 5, "C": 7}  # all different, none a vector's width
# Padding of one operand only: a kernel that checks one leading dimension may not conclude from it on another.
A_APART, OTHERS_APART = {"A": 3, "B": 0, "C": 0}, {"A": 0, "B": 5, "C": 8}
VECTORS = {"A": 4, "B": 8, "C": 8}  # whole vectors, which keep the alignment
ALIGNED = dict.fromkeys(
    "ABC", 0
)  # operands begin at multiples of 16 bytes; else they end at the buffer's end on the host
LONG = 2**16  # overflows a 16-bit counter
LONG_SUMS = 2**20  # products of a sum; with more a block takes a second
LONG_LINES = {"A": LONG + 3, "B": LONG + 5, "C": LONG + 7}
LONG_WHOLE_LINES = {"A": LONG + 8, "B": LONG + 16, "C": LONG + 24}
# alpha and beta of scaled calls: both signs, above and below 1/2, not representable in float, huge, tiny, 0, 1 and
# -1; complex numbers with both parts. Real types take the real parts.
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
SCALING_ROUNDINGS = 5  # of a scaled result and its reference
ABOVE_LEAST = 9  # exponent of subnormal factors, relative to the least number's
PRECISE = 5  # one in so many scaled calls is run on problems with the smallest errors
RARITY_OF_C = 3  # every eighth element of a special C is NaN, infinite or 3
# Exponents of the small parts of complex numbers. A kernel that computes a complex product by three real ones loses
# up to (2 k + 3) 2**-53 of the large parts in f64. The bound of c64 is (2 k + 4) 2**-24 of the small parts. So down
# to 2**-29 no values exceed it. At k = 1 these values do from 2**-31 down; with more products the errors mostly
# cancel.
APART, JUST_APART = {"A": -40, "B": -40}, {"A": -40, "B": -31}
FAR_APART = {"A": -50, "B": -50}  # for few elements: any loss exceeds the bound, however the errors fall


class Magnitude(Enum):
    """The size of the integers in one operand, as a power of two that scales them exactly.

    In a Gram matrix A is also B, so each gets half of the product's exponent, rounded.
    """

    ORDINARY = "ordinary"
    LARGE = "large"  # as large as possible without overflow of any sum
    LEAST = "least"  # multiples of the least positive number, most of them subnormal

    def exponent(self, problem: Problem) -> int:
        """Return the exponent of the power of two."""
        if self is Magnitude.ORDINARY:
            return 0
        least, past_largest = problem.dtype.exponents
        largest_sum = 2 * 2 * problem.k * problem.dtype.parts  # of the magnitudes of k products
        factors = 2 if problem.is_gram else 1
        large, smallest = (past_largest - 1 - largest_sum.bit_length()) // factors, -(-least // factors)
        return large if self is Magnitude.LARGE else smallest


@dataclass(frozen=True, slots=True)
class Check:
    """One call of the kernel. Real types take the real parts of alpha and beta."""

    name: str
    values: Values
    padding: dict[str, int]  # operand -> elements added to its leading dimension
    alpha: complex
    beta: complex
    roundings: int = 2  # of the result and its reference, besides those of the k products and sums
    magnitude: Magnitude = Magnitude.ORDINARY  # of the integers of C and of the operand `sized`
    sized: str = "A"
    small: dict[str, int] = field(default_factory=dict)  # operand -> exponent of its small parts
    apart: dict[str, Values] = field(default_factory=dict)  # operand -> its values, if they differ from `values`
    past: dict[str, int] = field(default_factory=dict)  # operand -> elements of a line past whole vectors
    loose: bool = False  # an infinite result may be NaN, since kernels may scale partial sums
    shift: dict[str, int] = field(default_factory=dict)  # operand -> elements past a multiple of 16 bytes
    at_start: bool = False  # operands lie at the starts of their buffers, else at the ends; the host faults outside

    @property
    def is_sparse(self) -> bool:
        """Whether all but SPARSE_TERMS products of each element are 0."""
        return self.apart.get("A") is Values.SPARSE

    def exponent(self, name: str, problem: Problem) -> int:
        """Return `Filling.exponent` of this operand.

        For integers and small parts it is the exponent of a power of two, for special values their rarity, and for a
        sparse operand whether all of its lines are alike.
        """
        if self.values is Values.SPECIAL:
            products = 2 * problem.k * problem.dtype.parts  # about half of the results are then finite
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
    # Last, since the timing uses these operands.
    Check("precision", Values.UNIFORM, padding=NONE, alpha=1.0, beta=0.0),
)
# Kernels have vectorised loads and stores for lines of whole vectors.
SCALED_CALLS = tuple(
    Check(f"scaled call {number}", Values.WIDE, lines, alpha, beta, roundings=SCALING_ROUNDINGS)
    for lines in (VECTORS, ODD)
    for number, (alpha, beta) in enumerate(SCALARS, 1)
)
# All pairs of the factors for which a kernel may have a special case.
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
# One leading dimension is not a multiple of a vector, or of half a vector; all else is aligned.
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
        # With the least numbers, which no finite alpha makes infinite.
        ("alpha", "infinite", complex(-sign * math.inf, sign * math.inf), 0.0, Magnitude.LEAST),
        ("alpha of a C that is read", "infinite", complex(sign * math.inf, sign * math.inf), BETA, Magnitude.LEAST),
        ("beta", "infinite", ALPHA, complex(sign * math.inf, -sign * math.inf), Magnitude.ORDINARY),
    )
)
SPECIAL_VALUES = (
    Check("special values", Values.SPECIAL, padding=VECTORS, alpha=1.0, beta=0.0, shift=ALIGNED),
    Check("special values of C too", Values.SPECIAL, padding=ODD, alpha=ALPHA, beta=BETA),
    Check("special values of C too", Values.SPECIAL, padding=VECTORS, alpha=ALPHA, beta=SMALL_BETA, shift=ALIGNED),
    # A kernel must overwrite C whatever it holds, not only NaN.
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
# Min-plus: every result is exact, whatever the values. Among values from [-1, 1) any product may be the least, so a
# missing one shows somewhere. With these alpha and beta some elements come from C and some from the product; neither
# factor is representable in float.
SHIFT, SHIFT_C = 1.7, -0.3
MIN_PLUS_CHECKS = (
    Check("timed call", Values.UNIFORM, padding=NONE, alpha=MIN_PLUS.one, beta=MIN_PLUS.zero),
    Check("general call", Values.UNIFORM, padding=ODD, alpha=SHIFT, beta=SHIFT_C),
    # Last, since the timing uses these operands: path lengths of a graph.
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
    # Kernels may have a special case for values without a negative sign.
    *(Check(f"signs in {name}", Values.LENGTHS, NONE, SHIFT, SHIFT_C, apart={name: Values.UNIFORM}) for name in "AB"),
    Check("few signs", Values.FEW_SIGNS, padding=NONE, alpha=SHIFT, beta=SHIFT_C),
    Check("no paths", Values.UNUSUAL, padding=A_APART, alpha=MIN_PLUS.one, beta=MIN_PLUS.zero),
    *(
        Check(f"{size.value} values", Values.INTEGERS, padding=NONE, alpha=0.0, beta=math.inf, magnitude=size)
        for size in (Magnitude.LARGE, Magnitude.LEAST)
    ),
)
# A NaN counts as no path: as alpha it removes the product, as beta it removes C.
MIN_PLUS_FACTORS = (
    Check("alpha NaN", Values.LENGTHS, padding=VECTORS, alpha=math.nan, beta=MIN_PLUS.one),
    Check("beta NaN", Values.LENGTHS, padding=ODD, alpha=MIN_PLUS.one, beta=math.nan),
)
COMPLEX_CHECKS = (
    # Factors with a real part of 0, which kernels must not take for 0.
    Check("imaginary call", Values.INTEGERS, padding=VECTORS, alpha=2j, beta=-1j),
    # Small parts of the result are sums of small terms; a kernel must not compute them as differences of large ones.
    Check("small real parts", Values.SMALL_REAL, padding=NONE, alpha=1.0, beta=0.0, small=APART),
    Check("small imaginary parts", Values.SMALL_IMAGINARY, padding=NONE, alpha=1.0, beta=0.0, small=JUST_APART),
    Check("small parts at the edge", Values.SMALL_AT_EDGE, padding=NONE, alpha=1.0, beta=0.0, small=FAR_APART),
)


def is_min_plus(problem: Problem) -> bool:
    return problem.dtype.semiring is MIN_PLUS


def subnormal_factors(problem: Problem) -> tuple[Check, ...]:
    """Return calls with subnormal factors, and values so large that the results are exact."""
    factor = 2.0 ** (problem.dtype.sum.exponents[0] + ABOVE_LEAST)
    return tuple(
        Check("subnormal factors", Values.INTEGERS, ODD, factor, beta, magnitude=Magnitude.LARGE)
        for beta in (0.0, factor)
    )


def checks_of(problem: Problem) -> tuple[Check, ...]:
    """Return the calls that verify a kernel on its problem. The last one prepares the operands for the timing."""
    return MIN_PLUS_CHECKS if is_min_plus(problem) else CHECKS


def probe_checks(problem: Problem, number: int) -> tuple[Check, ...]:
    """Return the calls of a trial on a small problem; `number` counts these problems from 0.

    Each problem gets one call of each kind, and `number` selects its factors, values and padding. The first problem
    gets some more factors.
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
    """Return all calls for small problems."""
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
    """Return calls with operands at the starts of their buffers: on the host a read before them faults.

    One call uses whole vectors, the other none.
    """
    return tuple(replace(one, at_start=True) for one in (overwriting(problem), checks_of(problem)[0]))


def precise_checks(problem: Problem) -> tuple[Check, ...]:
    """Return the calls for problems with k = 1, where the error bound is the smallest."""
    if is_min_plus(problem):
        return checks_of(problem)[1:2]
    return tuple(one for one in SCALED_CALLS if one.alpha != 0)[::PRECISE]


def sweep_checks(problem: Problem, number: int) -> tuple[Check, ...]:
    """Return the calls for one of many small problems with remainders: in whole vectors, in none, and one more.

    `number` selects the third call.
    """
    every = every_check(problem)
    return (overwriting(problem), checks_of(problem)[1], every[number % len(every)])


def deep_checks(problem: Problem) -> tuple[Check, ...]:
    """Return the calls for a problem with many iterations along k: in whole vectors, in none, and contiguous."""
    return (*sweep_checks(problem, 0)[:2], replace(checks_of(problem)[0], shift=ALIGNED))


def long_checks(problem: Problem, bits: int) -> tuple[Check, ...]:
    """Return the calls for a problem with an extent of more than 16 bits.

    If k is so long that a block takes a second, there is one call: in whole vectors for 32-bit indices, without
    vectors for 64-bit indices. A 16-bit counter overflows in both.
    """
    every = (overwriting(problem), *checks_of(problem)[1:3])
    if problem.k < LONG_SUMS:
        return every
    return every[:1] if bits == INDEX_BITS[0] else every[1:2]


def with_padding(check: Check, padding: dict[str, int]) -> Check:
    """Return the check with this padding of the leading dimensions."""
    return replace(check, padding=padding)
