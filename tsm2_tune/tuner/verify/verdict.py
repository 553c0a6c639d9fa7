"""Is what the kernel computes right? Every element, against a reference of higher precision, in each of the checks.

A kernel is verified on the problem itself and on small problems at the edges of its configuration (`edge_problems`),
as what is exported serves every shape; and before it is a winner on many more (`tuner/verify/exhaustive.py`). The
error allowed to a sum grows with k, so small problems show a precision below the dtype's.

After each call the guard zones around every operand, the padding between columns and the inputs themselves
must hold the bits they held before. The workspace of a kernel that splits k is poisoned before each call; what is
around it must stay as it was, and its counters must be 0 again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.device.interface import Device
from tsm2_tune.tuner.device.support_kernels import Report
from tsm2_tune.tuner.results.trial import Verdict
from tsm2_tune.tuner.verify.bound_kernel import LoadedKernel
from tsm2_tune.tuner.verify.checks import Check, checks_of, error_coefficient, expected_exactness
from tsm2_tune.tuner.verify.operands import VECTOR_BYTES, Filling, Operand, Operands, Values


@dataclass(frozen=True, slots=True)
class Verification:
    """A kernel on operands, and the calls that it makes there."""

    operands: Operands
    loaded: LoadedKernel
    checks: tuple[Check, ...]
    seed: int


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
    (verdict,) = verify_each(device, [Verification(operands, loaded, checks or checks_of(operands.problem), seed)])
    return verdict


def verify_each(device: Device, verifications: Sequence[Verification]) -> list[Verdict]:
    """Return the verdict on each, on operands of one dtype, up to the first that is not right.

    As many calls are started one after another as the device takes.
    """
    if not verifications:
        return []
    support = verifications[0].operands.support
    worst_ratios = [0.0 for _ in verifications]
    calls = ((number, place) for number, one in enumerate(verifications) for place in range(len(one.checks)))
    while started := [
        (number, _started(verifications[number], at, place))
        for place, (number, at) in enumerate(islice(calls, device.calls_ahead))
    ]:
        for (number, call), report in zip(started, support.reports(len(started)), strict=True):
            verdict = _judged(call, report)
            if not verdict.correct:
                return [*map(_right, verifications[:number], worst_ratios), verdict]
            worst_ratios[number] = max(worst_ratios[number], verdict.worst_ratio)
    return [*map(_right, verifications, worst_ratios)]


def _started(verification: Verification, at: int, place: int) -> _Call:
    """Return the verification's call number `at`, started: what is found of it has this place."""
    operands, loaded, check = verification.operands, verification.loaded, verification.checks[at]
    if place == 0:
        operands.support.begin_reports()
    prepare(operands, check, seed=verification.seed + 3 * at, loaded=loaded)
    loaded.start(operands.arguments(check.alpha, check.beta))
    return _look(operands, check, loaded, place)


def _right(verification: Verification, worst_ratio: float) -> Verdict:
    return Verdict(
        correct=True,
        worst_ratio=worst_ratio,
        detail=f"every element of {len(verification.checks)} calls right, worst error {worst_ratio:.2g} of its bound",
    )


def run_once(operands: Operands, loaded: LoadedKernel, check: Check) -> Verdict:
    """One call of the kernel on operands that are prepared for the check."""
    loaded.prepare()
    loaded.start(operands.arguments(check.alpha, check.beta))
    return inspect(operands, check, loaded)


def prepare(operands: Operands, check: Check, *, seed: int, loaded: LoadedKernel | None = None) -> None:
    """Fill A, B and C for the check, and poison the kernel's workspace."""
    placed = [] if loaded is None else loaded.placed()
    for offset, operand in enumerate(operands.every):
        overwritten = operand.name == "C" and check.beta == operands.problem.dtype.semiring.zero
        values = check.apart.get(operand.name, check.values)
        if values is Values.SPARSE and operands.problem.contiguous[0] != "k":
            values = Values.SPARSE_ACROSS
        filling = Filling(
            leading_dimension=operand.rows + padding(operand, operands.problem, check),
            values=Values.POISON if overwritten and "C" not in check.apart else values,
            seed=seed + offset,
            exponent=check.exponent(operand.name, operands.problem),
            shift=check.shift.get(operand.name),
            at_start=check.at_start,
        )
        placed.append(operand.place(filling))
    operands.support.fill(placed)


def clear(operands: Operands) -> None:
    """Poison C again where it lies, so that another product can be computed from the same A and B."""
    operands.c.fill(replace(operands.c.filling, values=Values.POISON))


def padding(operand: Operand, problem: Problem, check: Check) -> int:
    """Return the number of elements added to the operand's leading dimension: of multiples of 4 so many that it is
    whole vectors then.

    Of other numbers so many that it is odd, and lines are no vectors.
    """
    added, whole = check.padding[operand.name], VECTOR_BYTES // problem.dtype.element_bytes
    if added and added % 4 == 0:
        return max(added, whole) + -operand.rows % whole + check.past.get(operand.name, 0)
    return added + (operand.rows + added + 1) % 2 if added else 0


def inspect(operands: Operands, check: Check, loaded: LoadedKernel | None = None) -> Verdict:
    """Check the results of a call: guard zones, padding, inputs, the kernel's workspace, and every element of C."""
    operands.support.begin_reports()
    call = _look(operands, check, loaded, 0)
    return _judged(call, *operands.support.reports(1))


@dataclass(frozen=True, slots=True)
class _Call:
    """A call that was started, and what is looked at, as it lay then."""

    problem: Problem
    check: Check
    watched: tuple[tuple[Operand, Filling], ...]


def _look(operands: Operands, check: Check, loaded: LoadedKernel | None, place: int) -> _Call:
    """Start looking at what the call left behind.

    All of it is asked for at once: on small problems a GPU waits for each answer longer than it works.
    """
    workspace, counters = (loaded.workspace, loaded.counters) if loaded is not None else ((), None)
    watched = (*workspace, *operands.every)
    inputs = [operand for operand in operands.every if operand.name != "C"]
    operands.support.look_for_changes([(one.placed, one in inputs) for one in watched], counters, place=place)
    compare(operands, check, place=place)
    return _Call(operands.problem, check, tuple((one, one.filling) for one in watched))


def _judged(call: _Call, report: Report) -> Verdict:
    """Return the verdict on a call."""
    problem, check = call.problem, call.check
    if report.counters:
        tile, count = report.first_counter
        return Verdict(False, math.inf, f"{check.name}: left the counter of tile {tile} at {count}, not at 0")
    for (operand, filling), (changes, first) in zip(call.watched, report.changes, strict=True):
        if changes:
            where = operand.as_filled(filling).first_change(first)
            detail = f"{check.name}: wrote where it must not, {changes} elements, first {where}"
            return Verdict(correct=False, worst_ratio=math.inf, detail=detail)
    worst = report.worst
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


def compare(operands: Operands, check: Check, *, place: int) -> None:
    """Start comparing C with what it must be; see Support.compare."""
    problem, c = operands.problem, operands.c
    alpha, beta = (
        complex(problem.dtype.factor(value)) for value in (check.alpha, check.beta)
    )  # in the kernel's types
    operands.support.compare(
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
            np.int32(c.filling.exponent),
            np.uint64(c.address),
            *c.strides,
            np.int32(c.row_major),
            np.float64(error_coefficient(problem, check)),
            np.int32(expected_exactness(problem, check)),
        ),
        place=place,
    )
