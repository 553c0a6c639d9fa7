"""Is what the kernel computes right? Every element, against a reference of higher precision.

Three checks, each with fresh random inputs:

- *timed call*: the call that is timed (contiguous operands, alpha = 1, beta = 0) on small integers, C filled
  with NaN before. No partial sum rounds (`exactness`), so every element must be exact: one product left out,
  doubled or taken from a wrong place always shows, however large k is.
- *general call*: padded leading dimensions, alpha = -2, beta = 3 and a C of small integers; exact again.
- *precision*: the timed call on uniform values from [-1, 1), where the error may be as large as the theorem
  allows and no larger, so that a lower precision than the dtype's shows.

Theorem (Jeannerod and Rump, "Improved error bounds for inner products in floating-point arithmetic", SIAM J.
Matrix Anal. Appl. 34, 2013): whatever the order of the sums, with or without fused multiply-adds, and absent
underflow and overflow, the computed inner product of k terms is within k u |a|^T |b| of the exact one, where u
is the unit roundoff, for every k. The bound used is (k + 2) u (|A||B|): one u for the scaling by alpha, one
for the reference's own rounding. What else a product may cost:

- complex numbers: the real part of an inner product of k terms is a real one of 2 k terms, and so is the imaginary
  part. Each is held to the theorem by itself: 2 (k + 2) u times the sum of its terms' magnitudes. So a kernel that
  takes three real products for a complex one shows on small problems, where parts of very different size are tried.
- 16-bit elements: u is that of the sums, which are f32; the result is rounded once more, by 2**-8 or 2**-11 of its
  size. The exact checks expect the exact sum, so rounded.
- tensor cores: an addition is cut off, not rounded, so that it costs 2 u (`Dtype.product_roundings`). That the
  bound stays linear in k, whatever k, holds for such arithmetic too (Lange and Rump, "Error estimates for the
  summation of real numbers with application to floating-point summation", BIT 57, 2017).
- tf32 and 3xtf32: the operands are rounded before they are multiplied (`Dtype.operand_error`).

A kernel is also verified on small problems at the edges of its configuration (`Family.probe_shapes`), with more
calls, of large and of subnormal values too: what is exported serves every shape. And since (k + 2) u is wide where k
is large, it is on them that a lower precision than the dtype's shows.

After each call the guard zones around every operand, the padding between columns and the inputs themselves
must hold the bits they held before. The workspace of a kernel that splits k is poisoned before each call; what is
around it must stay as it was, and its counters must be 0 again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum

import numpy as np

from tsm2_tune.generator.problem import MIN_PLUS, Problem
from tsm2_tune.tuner.device import Device
from tsm2_tune.tuner.loaded import LoadedKernel
from tsm2_tune.tuner.operands import Filling, Operand, Operands, Values
from tsm2_tune.tuner.trial import Verdict

ALPHA, BETA = -2.0 + 1j, 3.0 - 1j  # of the general call: integers, so that the result stays exact
# Elements added to the leading dimensions.
NONE = {"A": 0, "B": 0, "C": 0}
ODD = {"A": 3, "B": 5, "C": 7}  # all different, none a vector's width
# One operand apart from the others: what a kernel asks of one leading dimension says nothing of another.
A_APART, OTHERS_APART = {"A": 3, "B": 0, "C": 0}, {"A": 0, "B": 5, "C": 8}
VECTORS = {"A": 4, "B": 8, "C": 8}  # whole vectors, so that operands stay aligned where they are so without
VECTOR_BYTES = 16
ALIGNED = dict.fromkeys("ABC", 0)  # where the operands begin; on a host they end at a page's end otherwise
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
        """The power of two that they are multiplied by."""
        least, past_largest = problem.dtype.exponents
        largest_sum = 2 * 2 * problem.k * problem.dtype.parts  # of the magnitudes of k products
        factors = 2 if problem.is_gram else 1
        large, smallest = (past_largest - 1 - largest_sum.bit_length()) // factors, -(-least // factors)
        return {"ordinary": 0, "large": large, "least": smallest}[self.value]


@dataclass(frozen=True, slots=True)
class Check:
    """One call of the kernel and what is expected of it. Of alpha and beta real types take the real part."""

    name: str
    values: Values
    padding: dict[str, int]
    alpha: complex
    beta: complex
    roundings: int = 2  # besides those of the k products and sums, of the result and of its reference
    magnitude: Magnitude = Magnitude.ORDINARY  # of A's integers
    small: dict[str, int] = field(default_factory=dict)  # operand -> exponent of its small parts
    apart: dict[str, Values] = field(default_factory=dict)  # operand -> its values, where they are others
    shift: dict[str, int] = field(default_factory=dict)  # operand -> elements past a multiple of 16 bytes

    def exponent(self, name: str, problem: Problem) -> int:
        """The power of two that this operand's integers, or its small parts, are multiplied by."""
        scaled = "AB" if problem.dtype.semiring is MIN_PLUS else "A"  # all of a product's size
        of_a = dict.fromkeys(scaled, self.magnitude.exponent(problem))
        return (of_a if self.values is Values.INTEGERS else self.small).get(name, 0)


CHECKS = (
    Check("timed call", Values.INTEGERS, padding=NONE, alpha=1.0, beta=0.0),
    Check("general call", Values.INTEGERS, padding=ODD, alpha=ALPHA, beta=BETA),
    # Last, so that the operands lie as the timing needs them.
    Check("precision", Values.UNIFORM, padding=NONE, alpha=1.0, beta=0.0),
)

# On small problems the bound is tight, so that here a factor or an operand of lower precision shows too. The
# factors are no multiples of a power of two, and beta is 1, which kernels treat apart.
PROBE_CHECKS = (
    CHECKS[0],
    CHECKS[1],
    # Where operands are aligned and beta is 0, kernels have loads and stores of their own.
    Check("overwriting call", Values.INTEGERS, padding=VECTORS, alpha=ALPHA, beta=0.0, shift=ALIGNED),
    *(
        Check(f"{name} unaligned", Values.INTEGERS, {**VECTORS, name: 0}, 1.0, 1.0, shift={**ALIGNED, name: 1})
        for name in "ABC"
    ),
    Check("scaled call", Values.UNIFORM, padding=VECTORS, alpha=-0.7 + 0.3j, beta=1.0, roundings=5),
    Check("large values", Values.INTEGERS, OTHERS_APART, 1.0, 0.0, magnitude=Magnitude.LARGE, shift=ALIGNED),
    Check("subnormal values", Values.INTEGERS, A_APART, 1.0, 0.0, magnitude=Magnitude.LEAST, shift=ALIGNED),
    CHECKS[2],
)
# Of the semiring (min, +), where every result is exact, whatever the values. Of numbers from [-1, 1) any product may
# be the least, so that one left out shows somewhere. With these alpha and beta C[i, j] is less in one place, the
# product in another.
SHIFT, SHIFT_C = 1.75, -0.375
MIN_PLUS_CHECKS = (
    Check("timed call", Values.UNIFORM, padding=NONE, alpha=MIN_PLUS.one, beta=MIN_PLUS.zero),
    Check("general call", Values.UNIFORM, padding=ODD, alpha=SHIFT, beta=SHIFT_C),
    # Last, so that the operands lie as the timing needs them, and hold what graphs have.
    Check("path lengths", Values.LENGTHS, padding=NONE, alpha=MIN_PLUS.one, beta=MIN_PLUS.zero),
)
MIN_PLUS_PROBE_CHECKS = (
    *MIN_PLUS_CHECKS,
    Check("overwriting call", Values.UNIFORM, padding=VECTORS, alpha=SHIFT, beta=MIN_PLUS.zero, shift=ALIGNED),
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
COMPLEX_CHECKS = (
    # Factors without a real part, which kernels must not take for 0.
    Check("imaginary call", Values.INTEGERS, padding=VECTORS, alpha=2j, beta=-1j),
    # The result's imaginary parts are sums of small terms, which must not come as differences of large ones.
    Check("small real parts", Values.SMALL_REAL, padding=NONE, alpha=1.0, beta=0.0, small=APART),
    Check("small imaginary parts", Values.SMALL_IMAGINARY, padding=NONE, alpha=1.0, beta=0.0, small=JUST_APART),
    Check("small parts at the edge", Values.SMALL_AT_EDGE, padding=NONE, alpha=1.0, beta=0.0, small=FAR_APART),
)


def checks_of(problem: Problem) -> tuple[Check, ...]:
    """What a kernel is called for on the problem; after the last, the operands are as the timing needs them."""
    return MIN_PLUS_CHECKS if problem.dtype.semiring is MIN_PLUS else CHECKS


def probe_checks(problem: Problem) -> tuple[Check, ...]:
    """What a kernel is called for on a small problem."""
    if problem.dtype.semiring is MIN_PLUS:
        return MIN_PLUS_PROBE_CHECKS
    return (*PROBE_CHECKS, *COMPLEX_CHECKS) if problem.dtype.is_complex else PROBE_CHECKS


def error_coefficient(problem: Problem, check: Check) -> float:
    """The error allowed to a sum, relative to |alpha||A||B| + |beta||C|: (k + roundings) u, or what costs more."""
    dtype = problem.dtype
    sums = dtype.parts * (dtype.product_roundings * problem.k + check.roundings) * dtype.sum.unit_roundoff
    return dtype.operand_error + (1 + dtype.operand_error) * sums


class Exactness(IntEnum):
    """Which sums of products of integers stay exact; the numbers are those of the support kernels."""

    NONE = 0
    ALL = 1
    OFF_DIAGONAL = 2


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


def verify(
    device: Device,
    operands: Operands,
    loaded: LoadedKernel,
    *,
    seed: int,
    checks: tuple[Check, ...] = (),
) -> Verdict:
    """Run the checks on the kernel, those of the problem unless others are named.

    LaunchFailed and KernelFault pass through.
    """
    worst_ratio = 0.0
    checks = checks or checks_of(operands.problem)
    for number, check in enumerate(checks):
        prepare(operands, check, seed=seed + 3 * number)
        verdict = run_once(device, operands, loaded, check)
        if not verdict.correct:
            return verdict
        worst_ratio = max(worst_ratio, verdict.worst_ratio)
    return Verdict(
        correct=True,
        worst_ratio=worst_ratio,
        detail=f"every element of {len(checks)} calls right, worst error {worst_ratio:.2g} of its bound",
    )


def run_once(device: Device, operands: Operands, loaded: LoadedKernel, check: Check) -> Verdict:
    """One call of the kernel on operands that are prepared for the check."""
    loaded.prepare()
    loaded.start(operands.arguments(check.alpha, check.beta))
    device.synchronise()
    trouble = loaded.trouble()
    return Verdict(False, math.inf, f"{check.name}: {trouble}") if trouble else inspect(operands, check)


def prepare(operands: Operands, check: Check, *, seed: int) -> None:
    """Fill A, B and C for the check."""
    for offset, operand in enumerate(operands.every):
        overwritten = operand.name == "C" and check.beta == operands.problem.dtype.semiring.zero
        operand.fill(
            Filling(
                leading_dimension=operand.rows + padding(operand, operands.problem, check),
                values=Values.POISON if overwritten else check.apart.get(operand.name, check.values),
                seed=seed + offset,
                exponent=check.exponent(operand.name, operands.problem),
                shift=check.shift.get(operand.name),
            )
        )


def clear(operands: Operands) -> None:
    """Poison C again where it lies, so that another product can be computed from the same A and B."""
    operands.c.fill(replace(operands.c.filling, values=Values.POISON))


def padding(operand: Operand, problem: Problem, check: Check) -> int:
    """Elements added to the operand's leading dimension: of multiples of 4 so many that it is whole vectors then."""
    added, whole = check.padding[operand.name], VECTOR_BYTES // problem.dtype.element_bytes
    return max(added, whole) + -operand.rows % whole if added and added % 4 == 0 else added


def inspect(operands: Operands, check: Check) -> Verdict:
    """What the call left behind: guard zones, padding, inputs, and every element of C."""
    for operand in operands.every:
        changes = operand.changes(matrix_too=operand.name != "C")
        if changes.count:
            return Verdict(
                correct=False,
                worst_ratio=math.inf,
                detail=f"{check.name}: wrote where it must not, {changes.count} elements, first {changes.first}",
            )
    problem = operands.problem
    worst = compare(operands, check)
    top = worst[worst[:, 0].argmax()]
    ratio, index, found, expected = (float(value) for value in top[:4])
    wrong = int(worst[:, 4].sum())
    if not wrong:
        return Verdict(correct=True, worst_ratio=ratio, detail="")
    element, part = divmod(int(index), problem.dtype.parts)
    column, row = divmod(element, problem.m)
    name = ("Re ", "Im ")[part] if problem.dtype.is_complex else ""
    error = abs(found - expected)
    bound = error / ratio if 0 < ratio < math.inf else 0.0
    return Verdict(
        correct=False,
        worst_ratio=ratio,
        detail=(
            f"{check.name}: {name}C[{row}, {column}] = {found:.9g}, expected {expected:.9g}, error {error:.2g} over"
            f" the bound {bound:.2g}; {wrong} of {problem.m * problem.n} elements wrong"
        ),
    )


def compare(operands: Operands, check: Check) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """What the comparison kernel found, one row a thread; see Support.compare."""
    problem, c = operands.problem, operands.c
    is_exact = check.values is Values.INTEGERS or problem.dtype.semiring.is_exact
    alpha, beta = (
        complex(problem.dtype.factor(value)) for value in (check.alpha, check.beta)
    )  # as the kernel gets them
    return operands.support.compare(
        problem.m,
        problem.n,
        problem.k,
        alpha=alpha,
        factors=operands.factors,
        result=(
            np.float64(beta.real),
            np.float64(beta.imag),
            np.int32(c.filling.values),
            np.uint64(c.filling.seed),
            np.uint64(c.address),
            *c.strides,
            np.int32(c.row_major),
            np.float64(error_coefficient(problem, check)),
            np.int32(exactness(problem) if is_exact else Exactness.NONE),
        ),
    )
