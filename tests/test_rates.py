"""The rates of a kernel, from what was measured of it at several shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tsm2_tune.generator.families import FAMILIES
from tsm2_tune.runtime.choice.choose import vendor_of
from tsm2_tune.runtime.choice.launch import Launch
from tsm2_tune.runtime.choice.predict import CACHED_RATE, Division, Kernels, Measured
from tsm2_tune.runtime.choice.winners import Winner, work_of
from tsm2_tune.runtime.choice.work import Card
from tsm2_tune.tuner.export.kernel_sets.rate_fit import USUAL_ARITHMETIC, fitted

CARD = Card(132, 4700.0, 4150.0, {"f32": 65000.0})
Shape = tuple[int, int, int]
WON = (12, 32, 100_000)
# Several tiles down, across and both; tiles filled in part.
OTHERS = ((24, 12, 40_000), (64, 64, 500_000), (8, 8, 5_000_000), (16, 3, 3_000_000), (3, 48, 2_000_000))
UNSEEN = ((6, 1, 1_000_000), (32, 32, 1_000_000), (48, 6, 200_000), (5, 40, 700_000))


def winner(times: Sequence[tuple[Shape, float]], *, on_host: bool = False) -> Winner:
    """A kernel of tiles of 12 by 32 that took so long, first where it won."""
    (_, own_us), *others = times
    return Winner(
        device="a card", compute_capability="" if on_host else "9.0", driver="", toolkit="", tuned_at="2026-01-01",
        dtype="f32", op="tn", m=12, n=32, k=100_000, config="inner_fma", median_us=own_us, gbytes_per_s=1.0,
        percent_of_floor=1.0, cache="clean", vendor_us=None, vendor_right=None, vendor_routine=None,
        vendor_version=None, x_cublas=None, digest="", kernel="inner_fma",
        launch=Launch(256, 12, 4096, 32, splits=132),
        division=Division(2, 12, 32, 96, 0, 1.03),
        elsewhere=[(*shape, 12, 132, us) for shape, us in others],
    )  # fmt: skip


def expected_us(division: Division, shape: Shape) -> float:
    """Return the time that the model expects of that kernel with these rates."""
    model = winner([(WON, 1.0)])
    measured = [Measured(work_of(model, shape, CARD), 12, 132, 1.0)]
    one = Kernels([division], [model.launch], [measured[0].work], [measured], CARD)
    return float(one.unmeasured_us([measured])[0, 0])


def with_rates(arithmetic: float, cached: float) -> Division:
    return Division(2, 12, 32, 96, 0, 1.03, arithmetic_rate=arithmetic, cached_rate=cached)


def times_at(arithmetic: float, cached: float) -> list[tuple[Shape, float]]:
    return [(shape, expected_us(with_rates(arithmetic, cached), shape)) for shape in (WON, *OTHERS)]


@pytest.mark.parametrize("arithmetic", [1.0, 0.33, 0.11])
def test_the_arithmetic_rate_that_times_were_made_with_is_found(arithmetic: float) -> None:
    found = fitted(winner(times_at(arithmetic, CACHED_RATE)), CARD).arithmetic_rate
    assert arithmetic <= found <= 1.6 * arithmetic  # usual ones count too


@pytest.mark.parametrize(("arithmetic", "cached"), [(1.0, 0.17), (1.0, 4.0), (0.33, 0.35), (0.25, 4.0), (0.11, 0.7)])
def test_times_at_other_shapes_are_expected_better_with_the_rates_found(arithmetic: float, cached: float) -> None:
    true, usual = with_rates(arithmetic, cached), with_rates(1.0, CACHED_RATE)
    found = fitted(winner(times_at(arithmetic, cached)), CARD)

    def error(of: Division) -> float:
        return sum(abs(math.log(expected_us(of, shape) / expected_us(true, shape))) for shape in UNSEEN) / len(UNSEEN)

    assert error(found) < 0.7 * error(usual)


@pytest.mark.parametrize("odd_lines", [1.0, 1.4, 2.4])
def test_what_odd_lines_cost_is_found_where_some_are(odd_lines: float) -> None:
    true = replace(with_rates(1.0, CACHED_RATE), odd_lines=odd_lines)
    odd = ((12, 31, 1_000_001), (9, 32, 3_000_001), (11, 30, 500_001))
    found = fitted(winner([(shape, expected_us(true, shape)) for shape in (WON, *OTHERS, *odd)]), CARD)
    assert found.odd_lines == pytest.approx(odd_lines, rel=0.2)
    assert fitted(winner([(shape, expected_us(true, shape)) for shape in (WON, *OTHERS[:3])]), CARD).odd_lines == 1.03
    of_odd_alone = winner([(shape, expected_us(true, shape)) for shape in odd])
    assert fitted(replace(of_odd_alone, m=12, n=31, k=1_000_001), CARD).odd_lines == 1.03


def test_where_times_tell_nothing_of_odd_lines_these_are_the_familys() -> None:
    staged = replace(winner([(WON, 1.0)]), division=replace(with_rates(1.0, CACHED_RATE), odd_lines=1.3))
    small = [(shape, 5.0 + 1e-3 * shape[2]) for shape in ((1, 1, 40), (3, 2, 41), (2, 2, 44))]  # all of it is start
    found = replace(staged, elsewhere=[(*shape, 12, 1, us) for shape, us in small])
    assert fitted(replace(found, m=4, n=4, k=40, median_us=5.0), CARD).odd_lines == 1.3


def test_where_times_tell_nothing_of_the_rates_they_are_usual() -> None:
    usual = with_rates(1.0, CACHED_RATE)
    filled = (WON, (12, 32, 5_000_000))  # one tile, and the memory is what limits
    found = fitted(winner([(shape, 1.1 * expected_us(usual, shape)) for shape in filled]), CARD)
    assert (found.arithmetic_rate, found.cached_rate) == (1.0, CACHED_RATE)


def test_one_absurd_time_does_not_change_them() -> None:
    times = times_at(0.33, CACHED_RATE)
    plain = fitted(winner(times), CARD)
    shape, us = times[-1]
    assert fitted(winner([*times[:-1], (shape, 100 * us)]), CARD) == plain


def test_what_was_measured_where_it_won_alone_has_usual_rates() -> None:
    found = winner([(WON, 500.0)])
    assert fitted(found, CARD) == found.division


def test_usual_rates_are_the_familys() -> None:
    """Times of next to nothing say little of a rate, and so leave the family's."""
    assert set(USUAL_ARITHMETIC) < set(FAMILIES)
    shapes = ((4, 4, 40), (3, 2, 41), (2, 2, 44))
    tiny = winner([(shape, expected_us(with_rates(0.35, CACHED_RATE), shape)) for shape in shapes])
    tiny = replace(tiny, m=4, n=4, k=40)
    of_family = replace(
        tiny,
        config=("row_lanes_register_b:threads=128,vector_bytes=16,lanes=4,columns=2,rows=4,row_tiles=2,min_blocks=8"),
    )
    assert fitted(of_family, CARD).arithmetic_rate == 0.33  # the nearest that is tried
    assert fitted(tiny, CARD).arithmetic_rate > 0.5
    alone = replace(of_family, elsewhere=())
    assert fitted(alone, CARD).arithmetic_rate == USUAL_ARITHMETIC["row_lanes_register_b"]


def test_a_hosts_have_usual_rates() -> None:
    found = winner(times_at(0.11, 0.35), on_host=True)
    assert fitted(found, CARD) is found.division


def test_the_vendors_wrong_answer_is_no_time() -> None:
    around = ((1, 2, 3, 4.0),)
    beside = replace(winner([(WON, 500.0)]), vendor_us=50.0, vendor_right=1, vendor_elsewhere=around)
    assert vendor_of(beside) == [(WON, 50.0), ((1, 2, 3), 4.0)]
    assert vendor_of(replace(beside, vendor_right=0)) == [((1, 2, 3), 4.0)]
    assert vendor_of(replace(beside, vendor_us=None, vendor_right=None)) == [((1, 2, 3), 4.0)]


@pytest.mark.parametrize(
    ("of_c", "op", "shape", "lds", "odd"),
    [
        (False, "nn", (64, 8, 5), None, True),  # B has lines of 5
        (True, "nn", (64, 8, 5), None, False),
        (True, "nn", (65, 8, 1), None, True),  # C's; A is one line
        (False, "nn", (65, 8, 1), None, True),  # B's lines are 1 apart
        (False, "nn", (65, 8, 1), ({"n": 68}, {"n": 4}), False),
        (True, "nn", (65, 8, 4), ({"n": 68}, {"n": 5}, {"n": 68}), False),
        (True, "nn", (64, 8, 4), ({"n": 64}, {"n": 4}, {"n": 65}), True),
        (True, "ttt", (64, 7, 4), None, True),
        (True, "ntt", (63, 8, 4), None, True),  # A has k lines of m
        (True, "ttt", (64, 8, 4), ({"t": 5}, {"t": 8}), True),
    ],
)
def test_lines_are_odd_of_a_and_b_or_c(
    of_c: bool, op: str, shape: Shape, lds: tuple[dict[str, int], ...] | None, odd: bool
) -> None:
    one = replace(winner([(WON, 1.0)]), op=op)
    assert one.division is not None
    one = replace(one, division=replace(one.division, vectors_of_c=of_c))
    assert work_of(one, shape, CARD, lds).has_odd_lines == odd
    assert (
        work_of(one, shape, CARD, lds, of_vendor=True).has_odd_lines
        == work_of(replace(one, division=None), shape, CARD, lds).has_odd_lines
    )
