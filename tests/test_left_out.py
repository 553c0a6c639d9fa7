"""The error of predicted gains, from tuned shapes that are left out of a pack."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from random import Random

import pytest

from tests.predicted import GPU, HERE, PLAIN, RATES, THERE, US, Shape, core, measured, pair, product
from tsm2_tune.runtime.choice.choose import Layout, core_record
from tsm2_tune.tuner.packs.core_pack import MeasuredKernel, Times
from tsm2_tune.tuner.packs.gains import gain_error_of, left_out, with_gain_errors

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("toolchain", "session_cache")]


def test_a_shape_is_predicted_without_its_measurements() -> None:
    here, there = left_out(pair(3 * US), {GPU: RATES})
    assert [one.winner.k for one in (here, there)] == [HERE[2], THERE[2]]
    assert (there.gain, here.gain) == (1 / 3, 2.0)
    assert there.predicted_gain == pytest.approx(2.0, rel=0.05)
    assert math.log(here.predicted_gain / here.gain) == pytest.approx(-math.log(6), rel=0.1)


def test_a_left_out_shape_is_predicted_as_by_a_pack_without_it() -> None:
    """Every shape of a pack in turn: its kernels, times and times of cuBLAS, and those of its transpose."""
    random = Random(1)
    shapes = [(m, n, k) for m, n in ((64, 8), (8, 64), (16, 16)) for k in (10_000, 1_000_000)]

    def us() -> float:
        return random.uniform(10, 1000)

    kernels = [
        measured(PLAIN, own, us(), *((shape, us()) for shape in shapes if shape != own), op="tn", vendor_us=us(),
                 vendor_times=[(shape, us()) for shape in shapes if shape != own])
        for own in shapes for _ in range(2)
    ]  # fmt: skip
    for m, n, k in shapes:
        hidden = ((m, n, k), (n, m, k))
        others = [
            replace(one, times=_outside(one.times, hidden), vendor_times=_outside(one.vendor_times, hidden))
            for one in kernels
            if (one.winner.m, one.winner.n, one.winner.k) not in hidden
        ]
        asked = Layout.of_op("f32", (m, n, k), "tn")
        expected = core(*others).choose(asked.record, GPU)
        found = core(*kernels).choose(core_record(*asked, leaves_out_shape=True), GPU)
        assert kernels[found.kernel].winner == others[expected.kernel].winner
        assert (found.us, found.vendor_us, found.distance, found.measured_us, found.is_vendors) == (
            expected.us, expected.vendor_us, expected.distance, expected.measured_us, expected.is_vendors
        )  # fmt: skip


def _outside(times: Times, shapes: Collection[Shape]) -> Times:
    return [time for time in times if tuple(time[:3]) not in shapes]


@pytest.mark.parametrize(
    "kernels",
    [
        pair()[:1],
        [replace(one, times=()) for one in pair()],
        [replace(one, winner=replace(one.winner, vendor_right=0)) for one in pair(3 * US)],
    ],
    ids=["one shape", "no times", "wrong results of cuBLAS"],
)
def test_without_measurements_the_error_is_the_prior(kernels: list[MeasuredKernel]) -> None:
    assert with_gain_errors(kernels, {GPU: RATES}) == kernels


def test_losses_raise_the_error_and_gains_lower_it() -> None:
    """One of two shapes loses log 6, the other gains as much; the prior counts as ten shapes."""
    exact, wrong = (gain_error(pair(us)) for us in (US / 2, 3 * US))
    factor = next(left_out(pair(), {GPU: RATES})).error_factor
    assert exact == pytest.approx(math.sqrt(10 / 12 * 0.3**2), rel=0.05)
    assert wrong == pytest.approx(math.sqrt((10 * 0.3**2 + 2 * (math.log(6) / factor) ** 2) / 12), rel=0.05)


@pytest.mark.parametrize(("slower", "is_left"), [(1, False), (2, True)])
def test_the_error_leaves_all_but_a_hundredth_of_slower_kernels_to_cublas(slower: int, is_left: bool) -> None:
    (one, *_) = left_out(pair(), {GPU: RATES})
    exact = replace(one, predicted_gain=1.0, gain=1.0, largest_gain_error=0.0)
    worse = replace(one, predicted_gain=5.0, gain=0.96, largest_gain_error=0.6)
    error = gain_error_of([exact] * (150 - slower) + [worse] * slower)
    assert (error > 0.6) == is_left


def test_a_shape_is_left_to_cublas_with_an_error_above_its_largest() -> None:
    (one, *_) = left_out(pair(), {GPU: RATES})
    for change, is_left in ((0.999, False), (1.001, True)):
        error = change * one.largest_gain_error
        kernels = [replace(kernel, gain_error=error) for kernel in pair()]
        assert next(left_out(kernels, {GPU: RATES})).is_vendor_chosen == is_left


def test_each_type_has_an_error_of_its_own() -> None:
    kernels = [*pair(3 * US), *(replace(one, winner=replace(one.winner, dtype="f64")) for one in pair(US / 2))]
    found = with_gain_errors(kernels, {GPU: replace(RATES, gflops={"f32": 60e3, "f64": 60e3})})
    errors = {one.winner.dtype: one.gain_error for one in found}
    assert errors["f32"] == pytest.approx(gain_error(pair(3 * US)), rel=0.01)
    assert errors["f64"] == pytest.approx(gain_error(pair(US / 2)), rel=0.1)


def gain_error(kernels: Sequence[MeasuredKernel]) -> float:
    (found,) = {one.gain_error for one in with_gain_errors(kernels, {GPU: RATES})}
    return found


@pytest.mark.parametrize(
    ("error", "k", "is_vendors"),
    [(0.0, 10240, False), (0.36, 10240, False), (0.41, 10240, True), (0.19, 2560, False), (0.24, 2560, True)],
)
def test_a_kernel_must_be_faster_by_more_than_the_error(error: float, k: int, is_vendors: bool) -> None:
    """The predicted gain is 1.5, so 0.9 errors may be 0.405. The error factor is sqrt(1 + (0.9 d)^2)."""
    kernel = measured(PLAIN, HERE, US, vendor_us=1.5 * US)
    found = core(replace(kernel, gain_error=error)).choose(product((*HERE[:2], k)), GPU)
    assert found.vendor_us / found.us == pytest.approx(1.5, rel=0.05)
    assert found.is_vendors == is_vendors
    assert found.distance == pytest.approx(math.log(HERE[2] / k))
