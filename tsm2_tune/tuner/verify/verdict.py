"""Functions that run the calls of a verification and compare every element with a more precise reference.

An exported kernel is used for every shape. So a kernel is verified on the problem that is timed, and on small
problems around the sizes of its tiles (`edge_problems`). The error bound grows with k, so small problems detect a
kernel that computes in a lower precision than its element type has.

After each call the inputs, the guard zones around every operand and the padding between columns must be unchanged.
The workspace of a split-k kernel is filled with NaN before each call. After the call its guard zones must be
unchanged, and its counters must be 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.device.interface import Device
from tsm2_tune.tuner.device.support_kernels import Report
from tsm2_tune.tuner.results.trial import Verdict
from tsm2_tune.tuner.verify.bound_kernel import BoundKernel
from tsm2_tune.tuner.verify.checks import Check, checks_of
from tsm2_tune.tuner.verify.error_bounds import error_coefficient, expected_exactness
from tsm2_tune.tuner.verify.operands import (
    MOST_GAP,
    VECTOR_BYTES,
    Filling,
    Operand,
    Operands,
    Values,
    element_text,
)

GAPS = {"A": 1, "B": 2, "C": MOST_GAP}  # unused columns between a batch's matrices if lines are padded


@dataclass(frozen=True, slots=True)
class KernelCalls:
    """A kernel with its operands, and the calls that verify it."""

    operands: Operands
    bound: BoundKernel
    checks: tuple[Check, ...]
    seed: int


def verify(
    device: Device,
    operands: Operands,
    bound: BoundKernel,
    *,
    seed: int,
    checks: tuple[Check, ...] = (),
) -> Verdict:
    """Verify the kernel by `checks`, or by `checks_of` the problem if `checks` is empty. Return the verdict."""
    (verdict,) = verify_each(device, [KernelCalls(operands, bound, checks or checks_of(operands.problem), seed)])
    return verdict


def verify_each(device: Device, verifications: Sequence[KernelCalls]) -> list[Verdict]:
    """Run all checks of several kernels. Return a verdict for each kernel, up to and including the first wrong one.

    All operands have the same element type. At most `device.calls_ahead` calls are queued on the GPU at a time.
    """
    if not verifications:
        return []
    support = verifications[0].operands.support
    worst_ratios = [0.0 for _ in verifications]
    calls = ((number, place) for number, one in enumerate(verifications) for place in range(len(one.checks)))
    while started := [
        (number, _start(verifications[number], at, place))
        for place, (number, at) in enumerate(islice(calls, device.calls_ahead))
    ]:
        for (number, call), report in zip(started, support.reports(len(started)), strict=True):
            verdict = _verdict_on(call, report)
            if not verdict.correct:
                return [*_all_right(verifications[:number], worst_ratios), verdict]
            worst_ratios[number] = max(worst_ratios[number], verdict.worst_ratio)
    return _all_right(verifications, worst_ratios)


def _start(verification: KernelCalls, at: int, place: int) -> _Call:
    """Launch the kernel for check number `at`, then the kernels that inspect its results and write report `place`."""
    operands, bound, check = verification.operands, verification.bound, verification.checks[at]
    if place == 0:
        operands.support.begin_reports()
    prepare(operands, check, seed=verification.seed + 3 * at, bound=bound)
    bound.start(operands.arguments(check.alpha, check.beta))
    return _start_inspection(operands, check, bound, place)


def _all_right(verifications: Sequence[KernelCalls], worst_ratios: Sequence[float]) -> list[Verdict]:
    return [right(len(one.checks), worst) for one, worst in zip(verifications, worst_ratios, strict=False)]


def right(calls: int, worst_ratio: float, more: str = "") -> Verdict:
    """Return the verdict on this number of calls, all with right results. `more` ends its detail."""
    detail = f"every element of {calls} calls right, worst error {worst_ratio:.2g} of its bound{more}"
    return Verdict(correct=True, worst_ratio=worst_ratio, detail=detail)


def prepare(operands: Operands, check: Check, *, seed: int, bound: BoundKernel | None = None) -> None:
    """Fill A, B and C with the check's values, and the kernel's workspace with NaN."""
    placed = [] if bound is None else bound.placed()
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
            gap=gap(operand, check),
        )
        placed.append(operand.place(filling))
    operands.support.fill(placed)


def padding(operand: Operand, problem: Problem, check: Check) -> int:
    """Return the number of elements to add to the operand's leading dimension.

    Let `added` be the padding that the check asks for. If `added` is 0, return 0. If `added` is a multiple of 4,
    return a number that makes the leading dimension a multiple of a vector, and add the operand's number in
    `check.past`. For any other `added`, return a number that makes the leading dimension odd.
    """
    added, whole = check.padding[operand.name], VECTOR_BYTES // problem.dtype.element_bytes
    if added and added % 4 == 0:
        return max(added, whole) + -operand.rows % whole + check.past.get(operand.name, 0)
    return added + (operand.rows + added + 1) % 2 if added else 0


def gap(operand: Operand, check: Check) -> int:
    """Return the number of unused columns between a batch's matrices; less than 0 if the matrices overlap.

    Without padding there are none. With padding, the number is different for each operand.
    """
    if operand.batch > 1 and operand.name in check.overlap:
        share = check.overlap[operand.name]
        return (max(int(share * operand.columns), 1) if share else 0) - operand.columns
    return GAPS[operand.name] if operand.batch > 1 and check.padding[operand.name] else 0


def inspect(operands: Operands, check: Check, bound: BoundKernel | None = None) -> Verdict:
    """Return the verdict on a call's results: every element of C, guard zones, padding, inputs and workspace."""
    operands.support.begin_reports()
    call = _start_inspection(operands, check, bound, 0)
    return _verdict_on(call, *operands.support.reports(1))


@dataclass(frozen=True, slots=True)
class _Call:
    """A launched call, with the operands to inspect and their placements."""

    problem: Problem
    check: Check
    watched: tuple[tuple[Operand, Filling], ...]


def _start_inspection(operands: Operands, check: Check, bound: BoundKernel | None, place: int) -> _Call:
    """Queue the kernels that inspect a call's results and write report number `place`."""
    workspace, counters = (bound.workspace, bound.counters) if bound is not None else ((), None)
    watched = (*workspace, *operands.every)
    inputs = [operand for operand in operands.every if operand.name != "C"]
    operands.support.look_for_changes([(one.placed, one in inputs) for one in watched], counters, place=place)
    compare(operands, check, place=place)
    return _Call(operands.problem, check, tuple((one, one.filling) for one in watched))


def _verdict_on(call: _Call, report: Report) -> Verdict:
    """Return the verdict on a call from its report."""
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
    wrong = int(worst[:, 4].sum())
    if not wrong:
        return Verdict(correct=True, worst_ratio=float(worst[:, 0].max()), detail="")
    ratio, index, found, expected = worst[worst[:, 0].argmax(), :4].tolist()
    element, part = divmod(int(index), problem.dtype.parts)
    column, row = divmod(element, problem.m)
    product, column = divmod(column, problem.n)
    name = ("Re ", "Im ")[part] if problem.dtype.is_complex else ""
    element_name = element_text("C", product, problem.batch, row, column)
    error = abs(found - expected)
    bound = error / ratio if 0 < ratio < math.inf else 0.0
    return Verdict(
        correct=False,
        worst_ratio=ratio,
        detail=(
            f"{check.name}: {name}{element_name} = {found:.9g}, expected {expected:.9g}, error {error:.2g} over"
            f" the bound {bound:.2g}; {wrong} of {problem.batch * problem.m * problem.n} elements wrong"
        ),
    )


def compare(operands: Operands, check: Check, *, place: int) -> None:
    """Queue the kernel that compares C with the reference. The result is part of report number `place`."""
    problem, c = operands.problem, operands.c
    alpha, beta = (
        complex(problem.dtype.factor(value)) for value in (check.alpha, check.beta)
    )  # in the kernel's types
    operands.support.compare(
        problem.m,
        problem.n,
        problem.k,
        problem.batch,
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
            np.int64(c.apart * c.rows * problem.dtype.parts),
            np.int32(c.row_major),
            np.float64(error_coefficient(problem, check)),
            np.int32(expected_exactness(problem, check)),
        ),
        place=place,
    )
