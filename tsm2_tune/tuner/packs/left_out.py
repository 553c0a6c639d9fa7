"""The error of predicted gains, from tuned shapes that are left out of the measurements, one at a time.

The gain of a kernel is the time of cuBLAS's GEMM divided by the kernel's time. If a tuned shape is left out, the
other kernels of its type and op predict the gain of the kernel that they choose. The measured times say what it is.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tsm2_tune.runtime.choice.choose import Chooser, Layout, Shape
from tsm2_tune.runtime.choice.winners import Winner
from tsm2_tune.tuner.packs.core_pack import DeviceRates, MeasuredKernel, core_of

PRIOR_SHAPES = 10  # so many left-out shapes count as much as the error that is assumed without any


@dataclass(frozen=True, slots=True)
class LeftOut:
    """The choice for a tuned shape, by kernels and times without this shape and its transpose. Times are in us."""

    winner: Winner  # a kernel that was tuned for the shape
    kernel_us: float  # measured time of the chosen kernel at the shape
    predicted_us: float
    vendor_us: float  # measured time of cuBLAS's gemm at the shape
    predicted_vendor_us: float
    distance: float  # to the chosen kernel's nearest measured shape: Euclidean, of the logarithms of m, n and k
    is_vendor_chosen: bool
    error_growth: float  # factor by which errors grow at this distance

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
        tuned = {_shape(kernel): kernel.winner for kernel in group if vendor_us(kernel.winner) is not None}
        for shape, winner in tuned.items():
            found = _left_out(winner, shape, group, device_rates)
            if found is not None:
                yield found


def vendor_us(winner: Winner) -> float | None:
    """Return the time of cuBLAS's GEMM at the winner's shape; None if it was not measured or its result was wrong."""
    return winner.vendor_us if winner.vendor_right else None


def _shape(kernel: MeasuredKernel) -> Shape:
    return kernel.winner.m, kernel.winner.n, kernel.winner.k


def _left_out(
    winner: Winner, shape: Shape, kernels: Iterable[MeasuredKernel], device_rates: Mapping[str, DeviceRates]
) -> LeftOut | None:
    m, n, k = shape
    hidden = (shape, (n, m, k))  # a kernel for the transposed product may have the same op
    others = [kernel for kernel in kernels if _shape(kernel) not in hidden]
    if not others:
        return None
    core = core_of([_without(kernel, hidden) for kernel in others], device_rates)
    chooser = Chooser([kernel.winner for kernel in others], core)
    match = chooser.match(Layout.of_op(winner.dtype, shape, winner.op), winner.device)
    chosen = next(kernel for kernel in others if kernel.winner is match.winner)
    kernel_us = next((us for *at, _, _, us in chosen.times if tuple(at) == match.extents), None)
    measured_vendor_us = vendor_us(winner)
    if kernel_us is None or match.expected_us is None or match.vendor_us is None or measured_vendor_us is None:
        return None
    return LeftOut(
        winner,
        kernel_us,
        match.expected_us,
        measured_vendor_us,
        match.vendor_us,
        match.distance,
        match.is_vendor_chosen,
        core.error_growth(match.distance),
    )


def _without(kernel: MeasuredKernel, shapes: Collection[Shape]) -> MeasuredKernel:
    """Return the kernel without its times, and cuBLAS's times, at these shapes."""
    # A time begins with m, n and k.
    times = [time for time in kernel.times if tuple(time[:3]) not in shapes]
    vendor_times = [time for time in kernel.vendor_times if tuple(time[:3]) not in shapes]
    return replace(kernel, times=times, vendor_times=vendor_times)


def with_gain_errors(
    kernels: Sequence[MeasuredKernel], device_rates: Mapping[str, DeviceRates]
) -> dict[str, DeviceRates]:
    """Return the rates of each GPU with the error of predicted gains, `gain_error`.

    It is the root mean square of the overestimates of log(gain) at left-out shapes, times the square root of 2, since
    underestimates count as 0. An overestimate far from measured shapes is divided by the growth that the core assumes
    there. The error assumed without any left-out shape counts as PRIOR_SHAPES shapes. Raise the errors of `core_of`.
    """
    found = defaultdict[str, list[LeftOut]](list)
    for one in left_out(kernels, device_rates):
        found[one.winner.device].append(one)
    return {device: _with_gain_error(rates, found[device]) for device, rates in device_rates.items()}


def _with_gain_error(rates: DeviceRates, found: Sequence[LeftOut]) -> DeviceRates:
    squares = 2 * sum((max(one.log_overestimate, 0.0) / one.error_growth) ** 2 for one in found)
    variance = (PRIOR_SHAPES * rates.gain_error**2 + squares) / (PRIOR_SHAPES + len(found))
    return replace(rates, gain_error=math.sqrt(variance))
