"""A kernel's rates, fitted to its measured times at several shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.predicted import RATES, Kind, Shape, core, core_times, measured
from tsm2_tune.generator.families import FAMILIES
from tsm2_tune.generator.tiling import Tiling
from tsm2_tune.runtime.choice.launch import Launch
from tsm2_tune.tuner.export.kernel_sets.rate_fit import PRIOR_ARITHMETIC, fitted
from tsm2_tune.tuner.packs.core_pack import MeasuredKernel

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("toolchain", "session_cache")]

TILING, LAUNCH = Tiling(2, 12, 32, 96, 0, 1.03), Launch(256, 12, 4096, 32, splits=132)
WON = (12, 32, 100_000)
# Several tiles down, across and both; tiles filled in part.
OTHERS = ((24, 12, 40_000), (64, 64, 500_000), (8, 8, 5_000_000), (16, 3, 3_000_000), (3, 48, 2_000_000))
UNSEEN = ((6, 1, 1_000_000), (32, 32, 1_000_000), (48, 6, 200_000), (5, 40, 700_000))
ODD = ((12, 31, 1_000_001), (9, 32, 3_000_001), (11, 30, 500_001))
SHORT = ((4, 4, 40), (3, 2, 41), (2, 2, 44))  # nearly all of their times is the start


def times_by(tiling: Tiling, shapes: Sequence[Shape], factor: float = 1.0) -> list[tuple[Shape, float]]:
    """The kernel's times at these shapes if its rates are the tiling's."""
    kind: Kind = (tiling, LAUNCH)
    found = core(measured(kind, WON, 1.0, op="tn")).rates_us(0, core_times(*((shape, 12, 132) for shape in shapes)))
    return [(shape, factor * us) for shape, us in zip(shapes, found, strict=True)]


def kernel(times: Sequence[tuple[Shape, float]], tiling: Tiling = TILING, **of_winner: str) -> MeasuredKernel:
    """The kernel with these times. The first is at its own shape."""
    (shape, us), *others = times
    found = measured((tiling, LAUNCH), shape, us, *others, op="tn")
    return replace(found, winner=replace(found.winner, **{"config": "inner_fma", **of_winner}))  # type: ignore[arg-type]


@pytest.mark.parametrize("arithmetic", [1.0, 0.33, 0.11])
def test_the_arithmetic_rate_behind_the_times_is_found(arithmetic: float) -> None:
    times = times_by(replace(TILING, arithmetic_rate=arithmetic), (WON, *OTHERS))
    assert arithmetic <= fitted(kernel(times), RATES).arithmetic_rate <= 1.6 * arithmetic  # the usual rate counts too


@pytest.mark.parametrize(("arithmetic", "cached"), [(1.0, 0.14), (1.0, 3.3), (0.33, 0.3), (0.25, 3.3), (0.11, 0.6)])
def test_fitted_rates_predict_unseen_shapes_better(arithmetic: float, cached: float) -> None:
    true = replace(TILING, arithmetic_rate=arithmetic, cached_rate=cached)

    def error(tiling: Tiling) -> float:
        pairs = zip(times_by(tiling, UNSEEN), times_by(true, UNSEEN), strict=True)
        return sum(abs(math.log(predicted / us)) for (_, predicted), (_, us) in pairs)

    assert error(fitted(kernel(times_by(true, (WON, *OTHERS))), RATES)) < 0.7 * error(TILING)


@pytest.mark.parametrize("without_vectors", [1.0, 1.4, 2.4])
def test_the_factor_for_unaligned_lines_is_found_if_some_lack_vectors(without_vectors: float) -> None:
    true = replace(TILING, without_vectors=without_vectors)
    assert fitted(kernel(times_by(true, (WON, *OTHERS, *ODD))), RATES).without_vectors == pytest.approx(
        without_vectors, rel=0.2
    )
    for shapes in ((WON, *OTHERS[:2]), ODD):  # none are odd, or all
        assert fitted(kernel(times_by(true, shapes)), RATES).without_vectors == TILING.without_vectors


def test_short_times_leave_the_factor_for_unaligned_lines() -> None:
    staged = replace(TILING, without_vectors=1.3)
    assert fitted(kernel([(shape, 5.0 + 1e-3 * shape[2]) for shape in SHORT], staged), RATES).without_vectors == 1.3


def test_times_bound_by_the_memory_leave_the_usual_rates() -> None:
    assert fitted(kernel(times_by(TILING, (WON, (12, 32, 5_000_000)), 1.1)), RATES) == TILING


def test_one_absurd_time_changes_nothing() -> None:
    *times, (shape, us) = times_by(replace(TILING, arithmetic_rate=0.33), (WON, *OTHERS))
    assert fitted(kernel([*times, (shape, 100 * us)]), RATES) == fitted(kernel([*times, (shape, us)]), RATES)


def test_the_usual_arithmetic_rate_is_the_familys() -> None:
    assert set(PRIOR_ARITHMETIC) < set(FAMILIES)
    config = "row_lanes_register_b:threads=128,vector_bytes=16,lanes=4,columns=2,rows=4,row_tiles=2,min_blocks=8"
    times = times_by(replace(TILING, arithmetic_rate=0.35), SHORT)
    assert fitted(kernel(times, config=config), RATES).arithmetic_rate == 0.33  # the nearest value that is tried
    assert fitted(kernel(times), RATES).arithmetic_rate > 0.5
    alone = fitted(kernel(times[:1], config=config), RATES)
    assert alone == replace(TILING, arithmetic_rate=PRIOR_ARITHMETIC["row_lanes_register_b"])


def test_a_hosts_kernel_keeps_its_rates() -> None:
    times = times_by(replace(TILING, arithmetic_rate=0.11, cached_rate=0.3), (WON, *OTHERS))
    assert fitted(kernel(times, compute_capability=""), RATES) is TILING
