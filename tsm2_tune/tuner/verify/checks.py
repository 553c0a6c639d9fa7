"""The calls that verify a kernel: values of the operands, their layout in memory, alpha and beta.

The problem that is timed is verified by four calls, each with new random inputs:

- *timed call*: contiguous operands, alpha = 1, beta = 0, small integers, and a C that contains NaN before the call.
  Small integers cause no rounding (`exactness`), so every element must be exact. For every k, a product that is
  missing, added twice or computed from a wrong element changes the result.
- *general call*: padded leading dimensions, alpha = -2, beta = 3, small integers in A, B and C. Every element must be
  exact.
- *late products*: each row of A has only SPARSE_TERMS nonzero elements, spread over k. The error bound grows with the
  number of nonzero products, so it is small even if k is large.
- *precision*: the timed call on uniform values from [-1, 1). The allowed error (`error_bounds.py`) is large if k is
  large.

Small problems are verified by more calls: all kinds of alpha and beta, aligned and unaligned operands, values near
overflow, subnormal values, values of very different sizes, NaN, infinities and zeros of both signs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import Enum

from tsm2_tune.generator.dtypes import MIN_PLUS
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.source import INDEX_BITS
from tsm2_tune.tuner.verify.operands import Values

ALPHA, BETA = -2.0 + 1j, 3.0 - 1j  # of the general call; integers keep the result exact
SMALL_BETA = 0.25 - 0.5j  # powers of two: exact, and beta * C cannot overflow
# Elements added to the leading dimensions.
NONE = {"A": 0, "B": 0, "C": 0}
ODD = {"A": 3, "B": 5, "C": 7}  # different for each operand, and no multiple of a vector's width
# Padding of A only, or of B and C only: a kernel must check each leading dimension by itself.
A_APART, OTHERS_APART = {"A": 3, "B": 0, "C": 0}, {"A": 0, "B": 5, "C": 8}
VECTORS = {"A": 4, "B": 8, "C": 8}  # multiples of a vector: columns stay aligned
ALIGNED = dict.fromkeys("ABC", 0)  # every operand begins at a multiple of 16 bytes
LONG = 2**16  # overflows a 16-bit counter
LONG_SUMS = 2**20  # k from which one thread block runs for about a second
LONG_LINES = {"A": LONG + 3, "B": LONG + 5, "C": LONG + 7}
LONG_WHOLE_LINES = {"A": LONG + 8, "B": LONG + 16, "C": LONG + 24}
# alpha and beta of scaled calls: both signs, above and below 1/2, not representable in float, huge, tiny, 0, 1 and
# -1; complex numbers with both parts. Real types use only the real parts.
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
SCALING_ROUNDINGS = 5  # roundings of a scaled result and its reference
ABOVE_LEAST = 9  # the subnormal factor is 2**ABOVE_LEAST times the least positive number
PRECISE = 5  # problems with k = 1 get every fifth scaled call
RARITY_OF_C = 3  # of Values.SPECIAL in C: one element in 2**3 is NaN, infinite or 3
# Binary exponents of the small real or imaginary parts. A kernel that computes a complex product with three real
# products in f64 has an error of up to (2 k + 3) 2**-53 of the large parts. The bound of c64 is (2 k + 4) 2**-24 of
# the small parts, so the error can exceed the bound only for small parts below 2**-29. With k = 1 it does from 2**-31
# down; with a larger k the errors mostly cancel.
APART, JUST_APART = {"A": -40, "B": -40}, {"A": -40, "B": -31}
FAR_APART = {"A": -50, "B": -50}  # for tests of few elements: every such error exceeds the bound


class Magnitude(Enum):
    """The scale of one operand's integers: a power of two, which causes no rounding.

    In a Gram matrix B is A, so the scale applies twice in each product. Its exponent is then half as large.
    """

    ORDINARY = "ordinary"
    LARGE = "large"  # the largest scale at which no sum overflows
    LEAST = "least"  # multiples of the least positive number, most of them subnormal

    def exponent(self, problem: Problem) -> int:
        """Return the binary exponent of the scale for this problem."""
        if self is Magnitude.ORDINARY:
            return 0
        least, past_largest = problem.dtype.exponents
        largest_sum = 2 * 2 * problem.k * problem.dtype.parts  # bound of the sum of k products
        factors = 2 if problem.is_gram else 1
        large, smallest = (past_largest - 1 - largest_sum.bit_length()) // factors, -(-least // factors)
        return large if self is Magnitude.LARGE else smallest


@dataclass(frozen=True, slots=True)
class Check:
    """One test call of a kernel: operand values, padding, alpha and beta.

    For real element types only the real parts of alpha and beta are used.
    """

    name: str
    values: Values
    padding: dict[str, int]  # operand -> elements added to its leading dimension
    alpha: complex
    beta: complex
    roundings: int = 2  # roundings besides the k products and sums, see error_bounds.py
    magnitude: Magnitude = Magnitude.ORDINARY  # scale of the integers in C and in the operand `sized`
    sized: str = "A"
    small: dict[str, int] = field(default_factory=dict)  # operand -> binary exponent of its small parts
    apart: dict[str, Values] = field(default_factory=dict)  # operand -> its values, if they differ from `values`
    past: dict[str, int] = field(default_factory=dict)  # operand -> elements past whole vectors in its lines
    loose: bool = False  # NaN is accepted for infinity: a kernel may scale partial sums
    shift: dict[str, int] = field(default_factory=dict)  # operand -> elements past a multiple of 16 bytes
    at_start: bool = False  # on the emulator: operands at the start of their buffers, not at the end
    # Operand -> share of a matrix's lines from each matrix of a batch to the next, if the matrices overlap. 0: the
    # operand is one matrix.
    overlap: dict[str, float] = field(default_factory=dict)

    @property
    def is_sparse(self) -> bool:
        """Whether at most SPARSE_TERMS of the k products of each element of C are not 0."""
        return self.apart.get("A") is Values.SPARSE

    def exponent(self, name: str, problem: Problem) -> int:
        """Return the parameter `Filling.exponent` for the operand `name`.

        For integers and for small real or imaginary parts, the parameter is the binary exponent of their scale. For
        special values it is the number e such that one in 2**e elements is NaN, infinite or 3. For a sparse operand
        it is 1 if the nonzero elements are at the same positions along k in all rows, else 0.
        """
        if self.values is Values.SPECIAL:
            products = 2 * problem.k * problem.dtype.parts  # so that about half of the results are finite
            return RARITY_OF_C if name == "C" else products.bit_length()
        if self.is_sparse:
            return int(problem.is_gram)
        if self.values is not Values.INTEGERS:
            return self.small.get(name, 0)
        exponent = self.magnitude.exponent(problem)
        if name == "C":  # C has the scale of a product
            return exponent * (2 if problem.is_gram else 1)
        return exponent if name == self.sized or problem.is_gram or is_min_plus(problem) else 0


CHECKS = (
    Check("timed call", Values.INTEGERS, padding=NONE, alpha=1.0, beta=0.0),
    Check("general call", Values.INTEGERS, padding=ODD, alpha=ALPHA, beta=BETA),
    Check("late products", Values.UNIFORM, padding=NONE, alpha=1.0, beta=0.0, apart={"A": Values.SPARSE}),
    # This call is the last one: the timing uses its operands.
    Check("precision", Values.UNIFORM, padding=NONE, alpha=1.0, beta=0.0),
)
# Kernels use vector loads and stores if the leading dimension is a multiple of a vector, so both cases are tested.
SCALED_CALLS = tuple(
    Check(f"scaled call {number}", Values.WIDE, lines, alpha, beta, roundings=SCALING_ROUNDINGS)
    for lines in (VECTORS, ODD)
    for number, (alpha, beta) in enumerate(SCALARS, 1)
)
# All pairs of the alpha and beta that a kernel may treat as special cases.
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
# One leading dimension is not a multiple of a vector, or of half a vector. Everything else is aligned.
LINES_APART = tuple(
    Check(f"lines of {name} apart", Values.INTEGERS, VECTORS, ALPHA, 0.0, past={name: past}, shift=ALIGNED)
    for past in (1, 2)
    for name in "ABC"
)
# Calls of a batch that read operands several times. With VECTORS, some matrices are as far apart as contiguous ones.
OVERLAPPING = (
    *(Check(f"one {name} for all", Values.INTEGERS, NONE, ALPHA, 0.0, overlap={name: 0.0}) for name in "AB"),
    Check("overlapping operands", Values.INTEGERS, ODD, ALPHA, BETA, overlap={"A": 0.5, "B": 0.5}),
    Check("overlapping operands", Values.INTEGERS, VECTORS, 1.0, 0.0, shift=ALIGNED, overlap={"A": 0.5, "B": 0.5}),
)
UNUSUAL_FACTORS = tuple(
    Check(f"{what} {factor}", Values.INTEGERS, lines, alpha, beta, 2, magnitude, loose=True)
    for lines, sign in ((ODD, 1), (VECTORS, -1))
    for what, factor, alpha, beta, magnitude in (
        ("alpha", "NaN", complex(math.nan, math.nan), BETA, Magnitude.ORDINARY),
        ("alpha where C is not read", "NaN", complex(math.nan, math.nan), 0.0, Magnitude.ORDINARY),
        ("beta", "NaN", ALPHA, complex(math.nan, math.nan), Magnitude.ORDINARY),
        # The smallest positive numbers: times a finite alpha they stay finite.
        ("alpha", "infinite", complex(-sign * math.inf, sign * math.inf), 0.0, Magnitude.LEAST),
        ("alpha of a C that is read", "infinite", complex(sign * math.inf, sign * math.inf), BETA, Magnitude.LEAST),
        ("beta", "infinite", ALPHA, complex(sign * math.inf, -sign * math.inf), Magnitude.ORDINARY),
    )
)
SPECIAL_VALUES = (
    Check("special values", Values.SPECIAL, padding=VECTORS, alpha=1.0, beta=0.0, shift=ALIGNED),
    Check("special values of C too", Values.SPECIAL, padding=ODD, alpha=ALPHA, beta=BETA),
    Check("special values of C too", Values.SPECIAL, padding=VECTORS, alpha=ALPHA, beta=SMALL_BETA, shift=ALIGNED),
    # With beta = 0 a kernel must overwrite any C, not only NaN.
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
# Min-plus: every result is exact for all values. Among values from [-1, 1) any product may be the minimum, so a
# missing product changes some element. With these alpha and beta some elements of the result come from C, others from
# the product. Neither alpha nor beta is representable in float.
SHIFT, SHIFT_C = 1.7, -0.3
MIN_PLUS_CHECKS = (
    Check("timed call", Values.UNIFORM, padding=NONE, alpha=MIN_PLUS.one, beta=MIN_PLUS.zero),
    Check("general call", Values.UNIFORM, padding=ODD, alpha=SHIFT, beta=SHIFT_C),
    # This call is the last one: the timing uses its operands, path lengths of a graph.
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
    # Kernels may treat operands without negative values as a special case.
    *(Check(f"signs in {name}", Values.LENGTHS, NONE, SHIFT, SHIFT_C, apart={name: Values.UNIFORM}) for name in "AB"),
    Check("few signs", Values.FEW_SIGNS, padding=NONE, alpha=SHIFT, beta=SHIFT_C),
    Check("no paths", Values.UNUSUAL, padding=A_APART, alpha=MIN_PLUS.one, beta=MIN_PLUS.zero),
    *(
        Check(f"{size.value} values", Values.INTEGERS, padding=NONE, alpha=0.0, beta=math.inf, magnitude=size)
        for size in (Magnitude.LARGE, Magnitude.LEAST)
    ),
)
# NaN means "no path": as alpha it removes the product from the minimum, as beta it removes C.
MIN_PLUS_FACTORS = (
    Check("alpha NaN", Values.LENGTHS, padding=VECTORS, alpha=math.nan, beta=MIN_PLUS.one),
    Check("beta NaN", Values.LENGTHS, padding=ODD, alpha=MIN_PLUS.one, beta=math.nan),
)
COMPLEX_CHECKS = (
    # alpha and beta with a real part of 0: kernels must not treat them as 0.
    Check("imaginary call", Values.INTEGERS, padding=VECTORS, alpha=2j, beta=-1j),
    # Small parts of the result are sums of small terms. A kernel must not compute them as differences of large terms.
    Check("small real parts", Values.SMALL_REAL, padding=NONE, alpha=1.0, beta=0.0, small=APART),
    Check("small imaginary parts", Values.SMALL_IMAGINARY, padding=NONE, alpha=1.0, beta=0.0, small=JUST_APART),
    Check("small parts at the edge", Values.SMALL_AT_EDGE, padding=NONE, alpha=1.0, beta=0.0, small=FAR_APART),
)


def is_min_plus(problem: Problem) -> bool:
    return problem.dtype.semiring is MIN_PLUS


def subnormal_factors(problem: Problem) -> tuple[Check, ...]:
    """Return calls with a subnormal alpha, beta 0 or subnormal, and integers so large that the results are exact."""
    factor = 2.0 ** (problem.dtype.sum.exponents[0] + ABOVE_LEAST)
    return tuple(
        Check("subnormal factors", Values.INTEGERS, ODD, factor, beta, magnitude=Magnitude.LARGE)
        for beta in (0.0, factor)
    )


def checks_of(problem: Problem) -> tuple[Check, ...]:
    """Return the calls that verify a kernel on its timed problem. The timing then uses the last call's operands."""
    return MIN_PLUS_CHECKS if is_min_plus(problem) else CHECKS


def probe_checks(problem: Problem, number: int) -> tuple[Check, ...]:
    """Return the calls that a kernel must pass on small problem number `number` of a trial, counted from 0.

    Each small problem gets one call of each kind. `number` selects the alpha, beta, values and padding of each call.
    Problem 0 gets additional pairs of alpha and beta.
    """
    if is_min_plus(problem):
        return MIN_PLUS_PROBE_CHECKS
    scaled = SCALED_CALLS[: len(SCALARS) : 3] if number == 0 else ()
    kinds = (SCALED_CALLS[len(SCALARS) :], UNALIGNED, LINES_APART, UNITS + UNUSUAL_FACTORS, SPECIAL_VALUES)
    in_turns = [kind[number % len(kind)] for kind in kinds]
    sizes = SIZES[number % len(SIZES)]
    others = (*COMPLEX_CHECKS * problem.dtype.is_complex, *OVERLAPPING * problem.is_batched)
    return (*CHECKS[:2], OVERWRITING, *sizes, *scaled, *in_turns, *others, CHECKS[-1])


def every_check(problem: Problem) -> tuple[Check, ...]:
    """Return all calls that are defined for a small problem."""
    if is_min_plus(problem):
        return (*MIN_PLUS_PROBE_CHECKS, *MIN_PLUS_FACTORS)
    sizes = (check for pair in SIZES for check in pair)
    others = (*COMPLEX_CHECKS * problem.dtype.is_complex, *OVERLAPPING * problem.is_batched)
    ordinary = (*CHECKS[:2], OVERWRITING, *UNALIGNED, *LINES_APART, *sizes, *SCALED_CALLS, *UNITS)
    unusual = (*UNUSUAL_FACTORS, *subnormal_factors(problem), *SPECIAL_VALUES)
    return (*ordinary, *unusual, *others, CHECKS[-1])


def overwriting(problem: Problem) -> Check:
    """Return a call with beta = 0 (C is only written), aligned operands, and leading dimensions of whole vectors."""
    return MIN_PLUS_OVERWRITING if is_min_plus(problem) else OVERWRITING


def first_checks(problem: Problem) -> tuple[Check, ...]:
    """Return two calls with operands at the start of their buffers.

    On the emulator, a kernel that reads memory before an operand then faults. The leading dimensions are multiples of
    a vector in the first call, and not padded in the second.
    """
    return tuple(replace(one, at_start=True) for one in (overwriting(problem), checks_of(problem)[0]))


def precise_checks(problem: Problem) -> tuple[Check, ...]:
    """Return the calls for problems with k = 1, which have the smallest error bound."""
    if is_min_plus(problem):
        return checks_of(problem)[1:2]
    return tuple(one for one in SCALED_CALLS if one.alpha != 0)[::PRECISE]


def sweep_checks(problem: Problem, number: int) -> tuple[Check, ...]:
    """Return three calls for a small problem whose extents are not multiples of the kernel's tiles.

    The leading dimensions are multiples of a vector in the first call and odd in the second. `number` selects the
    third call among all calls for small problems.
    """
    every = every_check(problem)
    return (overwriting(problem), checks_of(problem)[1], every[number % len(every)])


def deep_checks(problem: Problem) -> tuple[Check, ...]:
    """Return three calls for a problem with many k tiles: two of `sweep_checks`, and one without padding."""
    return (*sweep_checks(problem, 0)[:2], replace(checks_of(problem)[0], shift=ALIGNED))


def long_checks(problem: Problem, bits: int) -> tuple[Check, ...]:
    """Return the calls for a problem in which m, n or k exceeds 16 bits, for a kernel with `bits`-bit indices.

    If k is so large that a thread block runs for a second, return only one call. With 32-bit indices this call allows
    vector loads, with 64-bit indices it does not.
    """
    every = (overwriting(problem), *checks_of(problem)[1:3])
    if problem.k < LONG_SUMS:
        return every
    return every[:1] if bits == INDEX_BITS[0] else every[1:2]
