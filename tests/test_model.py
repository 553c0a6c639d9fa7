"""The performance model of the TSM2 paper, with the paper's own numbers."""

import itertools
import math
from dataclasses import replace

import pytest

from tsm2_tune.generator.device.cards import PROFILES, profile_named
from tsm2_tune.generator.paper_model import (
    OVERHEAD_REGISTERS,
    Region,
    arithmetic_utilisation,
    choose,
    descended,
    max_threads_per_sm,
    memory_time_us,
    memory_utilisation,
    registers_per_thread,
    t1_candidates,
    t2_threshold,
    t2_threshold_fma,
)
from tsm2_tune.generator.problem import Problem

K40C = profile_named("k40c")


@pytest.mark.parametrize(
    ("name", "published", "corrected"), [("k40c", 39.7, 20), ("m40", 5.9, 3), ("p100", 51.1, 25.6)]
)
def test_thresholds_come_out(name: str, published: float, corrected: float) -> None:
    """Sections 4.2 and 4.4: about 40, 6 and 50 in double precision. The corrected ones count an FMA on both sides."""
    assert t2_threshold(profile_named(name), "f64") == pytest.approx(published, abs=0.05)
    assert t2_threshold_fma(profile_named(name), "f64") == pytest.approx(corrected, rel=0.02)
    for dtype in ("f32", "f64"):
        assert t2_threshold_fma(profile_named("h200"), dtype) == pytest.approx(27.8, abs=0.1)


def test_occupancy_is_bound_by_threads_registers_or_shared_memory() -> None:
    assert registers_per_thread("f32", t2=8, t3=4) == 3 * 8 + 2 * 4 + OVERHEAD_REGISTERS
    assert registers_per_thread("f64", t2=8, t3=4) == 2 * (3 * 8 + 2 * 4) + OVERHEAD_REGISTERS
    assert max_threads_per_sm(K40C, "f32", t2=1, t3=1) == K40C.threads_per_sm
    assert max_threads_per_sm(K40C, "f64", t2=4, t3=4) == 65536 / (2 * 20 + OVERHEAD_REGISTERS)
    assert max_threads_per_sm(K40C, "f64", t2=16, t3=4) == 49152 / 128


def test_littles_law_counts_elements_and_fmas_in_flight() -> None:
    """K40c: 288 GB/s over 15 x 745 MHz is 3.22 doubles a clock; 331 clocks of latency want 1066 of them.

    64 double-precision FMAs a clock with a latency of 10 want 640 in flight.
    """
    in_flight = 384 * 2  # MaxOccup at t2 = 16, times t3
    wanted = 331 * 288e9 / (15 * 745e6) / 8
    assert memory_utilisation(K40C, "f64", t2=16, t3=2) == pytest.approx(in_flight / wanted)
    assert memory_utilisation(K40C, "f64", t2=16, t3=3) == 1
    tiny = replace(K40C, name="tiny", threads_per_sm=64)
    assert arithmetic_utilisation(tiny, "f64", t2=2, t3=2) == pytest.approx(256 / 640, rel=1e-3)
    assert arithmetic_utilisation(tiny, "f64", t2=8, t3=2) == 1


@pytest.mark.parametrize(
    ("card", "n", "bound", "t2", "t1"),
    [
        *(("k40c", n, "memory", n, 128) for n in (2, 4, 8, 16)),  # section 4.2
        ("m40", 16, "compute", 6, None),  # section 4.4: the threshold, 5.9, rounded; the paper has t2 = 8
        ("p100", 16, "memory", 16, 128),  # the paper has t2 = 4, which does not come out of its formulas
    ],
)
def test_the_choice_is_the_papers(card: str, n: int, bound: str, t2: int, t1: int | None) -> None:
    choice = choose(Problem(20480, n, 20480, "f64"), profile_named(card))
    assert (choice.bound, choice.t2, choice.t1) == (bound, t2, t1 or choice.t1)
    assert card != "k40c" or 1 <= choice.t3 <= 4  # 4 takes a longer latency than the public 331


@pytest.mark.parametrize("name", PROFILES)
def test_the_memory_branch_never_loses_by_more_columns(name: str) -> None:
    """So that its t2 is always the largest allowed: t2 x MaxOccup does not fall."""
    for dtype_name, t3 in itertools.product(("f32", "f64"), (1, 4, 16)):
        gains = [t2 * max_threads_per_sm(profile_named(name), dtype_name, t2=t2, t3=t3) for t2 in range(1, 78)]
        assert all(later >= earlier * (1 - 1e-12) for earlier, later in itertools.pairwise(gains))


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 2, 3, 7, 16, 31, 64, 100, 5000, 2**31 - 1])
@pytest.mark.parametrize("name", PROFILES)
def test_every_choice_is_within_its_bounds(name: str, n: int) -> None:
    for dtype_name in ("f32", "f64"):
        limits = profile_named(name)
        choice = choose(Problem(1024, n, 999, dtype_name), limits)
        assert 1 <= choice.t2 <= n
        assert 1 <= choice.t3 <= 32
        assert registers_per_thread(dtype_name, t2=choice.t2, t3=choice.t3) <= (63 if name == "s2050" else 255)
        assert choice.t1 in t1_candidates(limits, choice.threads_per_sm)
        assert min(choice.memory_utilisation, choice.arithmetic_utilisation) > 0
        assert max(choice.memory_utilisation, choice.arithmetic_utilisation) <= 1
        assert 0 < choice.time_us < math.inf


@pytest.mark.parametrize("dtype_name", ["f32", "f64"])
@pytest.mark.parametrize("name", ["s2050", "k40c", "h200"])
@pytest.mark.parametrize("n", [1, 5, 24])
def test_the_descent_finds_the_least_time(name: str, dtype_name: str, n: int) -> None:
    """Within 2 % of the best of a fine grid over the same region."""
    limits, problem = profile_named(name), Problem(20480, n, 20480, dtype_name)
    region = Region.of(limits, dtype_name, least_t2=1, most_t2=n)
    assert region is not None

    def time(point: tuple[float, float]) -> float:
        return memory_time_us(problem, limits, t2=point[0], t3=point[1])

    grid = itertools.product(range(10, 10 * n + 1, 10), range(10, 321, 5))
    points = {region.projected((t2 / 10, t3 / 10)) for t2, t3 in grid}
    assert time(descended(time, region)) <= 1.02 * min(map(time, points))


def test_the_descent_ends_where_nothing_slopes() -> None:
    region = Region.of(K40C, "f32", least_t2=1, most_t2=16)
    assert region is not None
    assert descended(lambda point: 1.0, region) == (1, 1)
    assert Region.of(profile_named("s2050"), "f64", least_t2=20, most_t2=30) is None


def test_t1_divides_the_occupancy() -> None:
    assert t1_candidates(K40C, 384) == (32, 64, 96, 128, 192, 384)
    assert t1_candidates(K40C, 2048) == (32, 64, 128, 256, 512, 1024)
