"""The gains of an exported module over cuBLAS's GEMM, and the error of predicted gains.

The gain of a kernel is the time of cuBLAS's GEMM divided by the kernel's time. The error is from tuned shapes that
are left out of the measurements, one at a time: the other kernels of the shape's type and op predict the gain of the
kernel that they choose. Its measured gain is that of the measured times.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tsm2_tune.generator.pack_shapes import Part, part_of
from tsm2_tune.generator.problem import Problem
from tsm2_tune.runtime.choice.choose import Layout, core_record
from tsm2_tune.runtime.choice.core import NO_KERNEL, Core
from tsm2_tune.runtime.choice.winners import Winner
from tsm2_tune.tuner.packs.core_pack import PRIOR_GAIN_ERROR, DeviceRates, MeasuredKernel, core_of
from tsm2_tune.tuner.packs.exported_kernels import ExportedKernels

SLOWER = 1 / 1.03  # with a smaller gain a kernel is slower than cuBLAS
PRIOR_SHAPES = 10  # so many left-out shapes count as much as PRIOR_GAIN_ERROR
MOST_SLOWER = 0.01  # the most left-out shapes, as a share, whose chosen kernel may be slower than cuBLAS


@dataclass(frozen=True, slots=True)
class LeftOut:
    """The choice for a tuned shape, by kernels and times without this shape and its transpose."""

    winner: Winner  # a kernel that was tuned for the shape
    gain: float  # measured gain of the chosen kernel at the shape
    predicted_gain: float
    is_vendor_chosen: bool
    error_factor: float  # times `gain_error`, this is the standard deviation of the error of log(predicted gain)
    largest_gain_error: float  # with a larger `gain_error` the shape is left to cuBLAS


def left_out(kernels: Sequence[MeasuredKernel], device_rates: Mapping[str, DeviceRates]) -> Iterator[LeftOut]:
    """Yield the choice for each tuned shape of the kernels for GPUs.

    A shape is skipped if cuBLAS or the chosen kernel was not measured there, if cuBLAS's result was wrong, or if no
    other kernel can compute it.
    """
    alike = defaultdict[tuple[str, str, str], list[MeasuredKernel]](list)
    for kernel in kernels:
        if not kernel.winner.on_host:
            alike[kernel.winner.device, kernel.winner.dtype, kernel.winner.op].append(kernel)
    for group in alike.values():
        core = core_of(group, device_rates)
        of_shapes = {
            (w.m, w.n, w.k, w.batch): w for w in (kernel.winner for kernel in group) if vendor_us(w) is not None
        }
        yield from filter(None, (_left_out(winner, group, core) for winner in of_shapes.values()))


def vendor_us(winner: Winner) -> float | None:
    """Return the time of cuBLAS's GEMM at the winner's shape; None if it was not measured or its result was wrong."""
    return winner.vendor_us if winner.vendor_right else None


def _left_out(winner: Winner, kernels: Sequence[MeasuredKernel], core: Core) -> LeftOut | None:
    layout = Layout.of_op(winner.dtype, (winner.m, winner.n, winner.k), winner.op, winner.batch)
    record = core_record(*layout, leaves_out_shape=True)
    choice, measured_vendor_us = core.choose(record, winner.device), vendor_us(winner)
    if choice.reason == NO_KERNEL or measured_vendor_us is None or not choice.us or not choice.vendor_us:
        return None
    at = [choice.m, choice.n, choice.k, choice.batch_count]
    kernel_us = next((us for *shape, _, _, us in kernels[choice.kernel].times if shape == at), None)
    if kernel_us is None:
        return None
    gain, predicted = measured_vendor_us / kernel_us, choice.vendor_us / choice.us
    return LeftOut(
        winner, gain, predicted, bool(choice.is_vendors), choice.error_factor, core.largest_gain_error(choice)
    )


def with_gain_errors(
    kernels: Sequence[MeasuredKernel], device_rates: Mapping[str, DeviceRates]
) -> list[MeasuredKernel]:
    """Return the kernels with `gain_error`, the same for a device and element type, and another for batches."""
    found = defaultdict[tuple[str, str, bool], list[LeftOut]](list)
    for one in left_out(kernels, device_rates):
        found[_kind(one.winner)].append(one)
    return [replace(one, gain_error=gain_error_of(found[_kind(one.winner)])) for one in kernels]


def _kind(winner: Winner) -> tuple[str, str, bool]:
    return winner.device, winner.dtype, winner.batch > 1


def gain_error_of(found: Sequence[LeftOut]) -> float:
    """Return the error of predicted gains from left-out shapes.

    It is the root mean square of the overestimates of log(gain), divided by their error factors, times the square
    root of 2, since underestimates count as 0. PRIOR_GAIN_ERROR counts as PRIOR_SHAPES shapes. The error is larger if
    slower kernels would otherwise be chosen at more than MOST_SLOWER of the shapes.
    """
    overestimates = ((math.log(one.predicted_gain / one.gain), one.error_factor) for one in found)
    squares = 2 * sum((max(log_ratio, 0.0) / factor) ** 2 for log_ratio, factor in overestimates)
    spread = math.sqrt((PRIOR_SHAPES * PRIOR_GAIN_ERROR**2 + squares) / (PRIOR_SHAPES + len(found)))
    of_slower = sorted((one.largest_gain_error for one in found if one.gain < SLOWER), reverse=True)
    return max([spread, *(1.001 * error for error in of_slower[int(MOST_SLOWER * len(found)) :])])


@dataclass(slots=True)
class Gains:
    """Gains of a module: the time of cuBLAS's GEMM divided by the kernel's, or 1 if the module calls cuBLAS."""

    tuned: list[float] = field(default_factory=list)  # at tuned shapes
    # At tuned shapes, without the kernels and times of the shape; only where the chosen kernel was measured.
    leave_one_out: list[float] = field(default_factory=list)


def gains_of(kernels: ExportedKernels) -> dict[Part, Gains]:
    """Return the gains of each part. A tuned shape without a right result of cuBLAS is skipped."""
    found = defaultdict[Part, Gains](Gains)
    fastest = dict[tuple[str, Problem], Winner]()
    for winner in sorted((kernel.winner for kernel in kernels.kernels), key=lambda one: one.median_us):
        fastest.setdefault((winner.device, _problem(winner)), winner)
    for winner in fastest.values():
        us = vendor_us(winner)
        if us is not None and not winner.on_host:
            found[part_of(_problem(winner))].tuned.append(max(us / winner.median_us, 1.0))
    for one in left_out(kernels.kernels, kernels.device_rates):
        gain = 1.0 if one.is_vendor_chosen else one.gain
        found[part_of(_problem(one.winner))].leave_one_out.append(gain)
    return dict(found)


def mean(gains: Sequence[float]) -> float | None:
    """Return the geometric mean; None without gains."""
    return math.exp(math.fsum(map(math.log, gains)) / len(gains)) if gains else None


def share_slower(gains: Sequence[float]) -> float | None:
    """Return the share of gains below SLOWER; None without gains."""
    return sum(gain < SLOWER for gain in gains) / len(gains) if gains else None


def _problem(winner: Winner) -> Problem:
    return Problem(winner.m, winner.n, winner.k, winner.dtype, winner.op, winner.batch)
