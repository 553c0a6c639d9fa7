"""The error of predicted gains, from tuned shapes that are left out of the measurements, one at a time.

The gain of a kernel is the time of cuBLAS's GEMM divided by the kernel's time. If a tuned shape is left out, the
other kernels of its type and op predict the gain of the kernel that they choose. Its measured gain is that of the
measured times.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tsm2_tune.runtime.choice.choose import Layout, core_record
from tsm2_tune.runtime.choice.core import NO_KERNEL, Core
from tsm2_tune.runtime.choice.winners import Winner
from tsm2_tune.tuner.packs.core_pack import PRIOR_GAIN_ERROR, DeviceRates, MeasuredKernel, core_of

PRIOR_SHAPES = 10  # so many left-out shapes count as much as PRIOR_GAIN_ERROR


@dataclass(frozen=True, slots=True)
class LeftOut:
    """The choice for a tuned shape, by kernels and times without this shape and its transpose. Times are in us."""

    winner: Winner  # a kernel that was tuned for the shape
    kernel_us: float  # measured time of the chosen kernel at the shape
    predicted_us: float
    vendor_us: float  # measured time of cuBLAS's gemm at the shape
    predicted_vendor_us: float
    # To the chosen kernel's nearest measured shape: the Euclidean norm of the differences of the logarithms of m, n,
    # k and the number of products.
    distance: float
    is_vendor_chosen: bool
    error_factor: float  # times `gain_error`, this is the standard deviation of the error of log(predicted gain)

    @property
    def log_overestimate(self) -> float:
        """The logarithm of the predicted gain divided by the measured gain."""
        return math.log(self.predicted_vendor_us / self.predicted_us * self.kernel_us / self.vendor_us)


def left_out(kernels: Sequence[MeasuredKernel], device_rates: Mapping[str, DeviceRates]) -> Iterator[LeftOut]:
    """Yield the choice for each tuned shape of the kernels for GPUs.

    A shape is skipped if cuBLAS or the chosen kernel was not measured there, if cuBLAS's result was wrong, or if no
    other kernel can compute it. Raise the errors of `core_of`.
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
    times = kernels[choice.kernel].times
    kernel_us = next(
        (us for *at, _, _, us in times if at == [choice.m, choice.n, choice.k, choice.batch_count]), None
    )
    if kernel_us is None:
        return None
    return LeftOut(
        winner,
        kernel_us,
        choice.us,
        measured_vendor_us,
        choice.vendor_us,
        choice.distance,
        bool(choice.is_vendors),
        choice.error_factor,
    )


def with_gain_errors(
    kernels: Sequence[MeasuredKernel], device_rates: Mapping[str, DeviceRates]
) -> list[MeasuredKernel]:
    """Return the kernels with the errors of their predicted gains, `gain_error`.

    Kernels of one device and element type have one error, those of batches another. It is the root mean square of the
    overestimates of log(gain) at left-out shapes, times the square root of 2, since underestimates count as 0. An
    overestimate is divided by the error factor of its prediction. PRIOR_GAIN_ERROR counts as PRIOR_SHAPES shapes.
    Raise the errors of `core_of`.
    """
    found = defaultdict[tuple[str, str, bool], list[LeftOut]](list)
    for one in left_out(kernels, device_rates):
        found[_kind(one.winner)].append(one)
    return [replace(one, gain_error=_gain_error(found[_kind(one.winner)])) for one in kernels]


def _kind(winner: Winner) -> tuple[str, str, bool]:
    return winner.device, winner.dtype, winner.batch > 1


def _gain_error(found: Sequence[LeftOut]) -> float:
    squares = 2 * sum((max(one.log_overestimate, 0.0) / one.error_factor) ** 2 for one in found)
    return math.sqrt((PRIOR_SHAPES * PRIOR_GAIN_ERROR**2 + squares) / (PRIOR_SHAPES + len(found)))
