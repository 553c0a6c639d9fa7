"""Tests of a kernel's expected time and launch on a shape that was not tuned."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.expected import errors, won
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.runtime.choice.interpolation import Routines
from tsm2_tune.runtime.choice.launch import Launch
from tsm2_tune.runtime.choice.predict import Division, Kernels, Measured
from tsm2_tune.runtime.choice.work import Card, Work

SMS = 132
CARD = Card(SMS, 4700.0, 4150.0, {"f32": 65000.0, "f64": 65000.0})
SPLIT = (Division(8, 256, 8, 16, 0, 1.03), Launch(64, 256, 4096, 8, splits=13))  # won at 20480x8x20480
LOOPING = (Division(6, 128, 0, 64, 0, 1.03), Launch(128, 512, 4096, 0))  # won at 10000000x8x8
SHARING = (Division(2, 128, 64, 32, 0, 1.3), Launch(128, 128, 65536, 64, splits=264, persistent=True))
R, L = (20480, 8, 20480), (10**7, 8, 8)


def work(shape: tuple[int, int, int], **more: Any) -> Work:
    return Work.of(shape, "f32", CARD, **more)


def kernels(*ones: tuple[tuple[Division, Launch], tuple[int, int, int], float]) -> Kernels:
    """Each with the shape that it won, and its time there."""
    return known_at(*((*one, {}) for one in ones))


def known_at(
    *ones: tuple[tuple[Division, Launch], tuple[int, int, int], float, dict[tuple[int, int, int], float]],
) -> Kernels:
    """The same, with times at other shapes."""
    divisions, launches = zip(*(one for one, *_ in ones), strict=True)
    measured = [
        [Measured(work(at), launch.rows_per_block, launch.splits, us) for at, us in ((won, own_us), *others.items())]
        for (_, launch), won, own_us, others in ones
    ]
    return Kernels(divisions, launches, [of[0].work for of in measured], measured, CARD)


@pytest.mark.parametrize("measured_us", [380.0, 800.0])
def test_a_long_time_is_expected_again_where_it_was_measured(measured_us: float) -> None:
    (us,) = kernels((SPLIT, R, measured_us)).us([SPLIT[1]], work(R))
    assert us == pytest.approx(measured_us, rel=0.1)


def test_a_time_that_is_mostly_start_tells_little_of_a_long_one() -> None:
    found = [kernels((SPLIT, (300, 8, 1000), us)) for us in (8.0, 16.0)]
    at = [[one.us([SPLIT[1]], work(shape))[0] for one in found] for shape in ((300, 8, 1000), R)]
    assert at[0][1] / at[0][0] == pytest.approx(2)
    assert 1 < at[1][1] / at[1][0] < 1.1


@pytest.mark.parametrize("m", [300, 2048, 5000, 20480, 10**6])
def test_a_split_of_k_gives_every_multiprocessor_a_block(m: int) -> None:
    _, launch, _ = kernels((SPLIT, R, 380.0)).best(work((m, 8, 20480)))
    assert launch.blocks(m, 8) >= 0.9 * SMS
    assert launch.has_workspace


def test_no_part_of_k_is_empty() -> None:
    _, launch, _ = kernels((SPLIT, R, 380.0)).best(work((300, 8, 40)))
    assert launch.splits <= 3


@pytest.mark.parametrize("shape", [(128, 8, 320), (128, 8, 32), (10**6, 64, 4096)])
def test_persistent_blocks_all_have_a_piece(shape: tuple[int, int, int]) -> None:
    _, launch, _ = kernels((SHARING, (20480, 64, 20480), 800.0)).best(work(shape))
    pieces = -(-shape[0] // 128) * -(-shape[2] // 32)
    assert launch.persistent
    assert launch.splits == min(264, pieces)


def test_blocks_have_fewer_rows_where_there_are_few() -> None:
    found = kernels((LOOPING, L, 160.0))
    assert found.best(work(L))[1] == LOOPING[1]
    _, launch, _ = found.best(work((100000, 8, 8)))
    assert launch.rows_per_block == 128
    assert found.best(work((400000, 8, 8)))[1].rows_per_block == 384


def test_the_best_is_the_least_of_all_launches() -> None:
    random = np.random.default_rng(7)
    ones = [(SPLIT, R, 380.0), (LOOPING, L, 160.0), (SHARING, (20480, 64, 20480), 800.0)]
    found = kernels(*ones)
    for _ in range(50):
        m, n, k = (int(x) for x in np.exp(random.uniform(0, np.log((10**6, 64, 30000)))))
        at, launch, us = found.best(work((m, n, k)), doubt=0.0)
        tried = [replace(one[0][1]) for one in ones]
        for splits in range(1, 200):
            if tried[0].has_workspace:
                tried[0] = tried[0].with_splits(min(splits, -(-k // 16)))
            times = found.us(tried, work((m, n, k)))
            assert us <= 1.25 * times[0]  # it tries no more than a few splits
            assert us <= times[2]
        tried[at] = launch
        assert found.us(tried, work((m, n, k)))[at] == pytest.approx(us)


def test_far_from_where_it_was_measured_a_kernel_counts_as_longer() -> None:
    one = (SPLIT, R, 380.0)
    _, launch, us = kernels(one).best(work((2000, 8, 2000)))
    near = ((SPLIT[0], launch), (2000, 8, 2000), us * 1.01)
    assert kernels(one, near).best(work(R))[0] == 0
    assert kernels(one, near).best(work((2000, 8, 2000)))[0] == 1


def test_a_time_is_that_of_the_shape_where_it_was_measured() -> None:
    other, far = (20480, 20, 20480), (5000, 8, 3000)
    plain = kernels((SPLIT, R, 380.0))
    found = known_at((SPLIT, R, 380.0, {other: 2 * plain.us([SPLIT[1]], work(other))[0]}))
    ratios = [found.us([SPLIT[1]], work(at))[0] / plain.us([SPLIT[1]], work(at))[0] for at in (R, other, far)]
    assert ratios[0] == pytest.approx(1, rel=0.01)
    assert ratios[1] == pytest.approx(2, rel=0.01)
    assert 1 < ratios[2] < 1.5


def test_nearest_measurement_with_like_lines_counts_most() -> None:
    odd = (20479, 8, 20479)
    plain = kernels((SPLIT, R, 380.0))
    ones = [Measured(work(R), 256, 13, 380.0)]
    ones.append(Measured(work(odd, has_odd_lines=True), 256, 13, 2 * plain.us([SPLIT[1]], work(odd))[0]))
    found = Kernels([SPLIT[0]], [SPLIT[1]], [work(R)], [ones], CARD)
    near = [work((20484, 8, 20484)), work((20483, 8, 20483), has_odd_lines=True)]
    ratios = [found.us([SPLIT[1]], at)[0] / plain.us([SPLIT[1]], at)[0] for at in near]
    assert ratios[0] < 1.01
    assert ratios[1] > 1.9


def test_lines_that_are_no_whole_vectors_cost_a_staged_kernel_more() -> None:
    ones = [(SPLIT, (20480, 64, 20480), 950.0), (SHARING, (20480, 64, 20480), 800.0)]
    found = kernels(*ones)
    assert found.best(work((20480, 64, 20480)))[0] == 1
    assert found.best(work((20479, 64, 20480), has_odd_lines=True))[0] == 0


def test_c_is_written_again_for_every_part_of_a_long_sum() -> None:
    shallow = replace(LOOPING[0], deepest=8), LOOPING[1]
    times = [kernels((one, L, 160.0)).us([one[1]], work((10**7, 8, 64)))[0] for one in (LOOPING, shallow)]
    assert times[1] > 1.5 * times[0]


@pytest.mark.parametrize(("k", "best"), [(8, 0), (9, 1)])
def test_a_kernel_counts_last_where_k_is_more_than_its_sums(k: int, best: int) -> None:
    shallow = replace(LOOPING[0], deepest=8), LOOPING[1]
    found = kernels((shallow, L, 160.0), (LOOPING, L, 320.0))
    at, _, us = found.best(work((10**7, 8, k)))
    assert at == best
    times, blocks = found.least(work((10**7, 8, k)))
    assert times[best, 0] == us
    assert blocks[best, 0] == found.best(work((10**7, 8, k)))[1].blocks(10**7, 8)
    meant = kernels((shallow, (10**7, 8, 9), 400.0))
    assert meant.best(work((10**7, 8, 9)))[2] == pytest.approx(400, rel=0.01)  # where it won
    alone = kernels((shallow, L, 160.0))
    assert alone.best(work((10**7, 8, 9)))[2] > 3 * alone.best(work(L))[2]


@pytest.mark.parametrize(("n", "columns"), [(1, 8), (8, 8), (9, 16), (60, 64), (64, 64)])
def test_columns_behind_the_last_are_multiplied_too(n: int, columns: int) -> None:
    ones = [(replace(SHARING[0], width=width), SHARING[1]) for width in (8, 0)]
    shape = (20480, n, 20480)
    alone = [replace(one[0], arithmetic_rate=1e-3) for one in ones]
    by_width, by_tile = (plain_us((one, SHARING[1]), shape) for one in alone)
    assert by_width / by_tile == pytest.approx(columns / 64, rel=0.01)


def test_rereading_rows_for_each_column_group_takes_longer() -> None:
    narrow = replace(LOOPING[0], block_n=3), LOOPING[1]
    shape = (10**7, 18, 19)
    times = [kernels((one, (10**7, 3, 48), 500.0)).us([one[1]], work(shape))[0] for one in (LOOPING, narrow)]
    assert times[1] > 1.5 * times[0]


def test_many_small_tiles_one_after_the_other_take_longer_than_their_bytes() -> None:
    lanes = Division(8, 1, 1, 512, 0, 1.03), Launch(256, 1, 0, 1)  # a block for each row
    found = kernels((lanes, (2000, 1, 20480), 70.0))
    waves = 10**6 / (SMS * 8)
    assert 0.5 * (waves - 1) < found.us([lanes[1]], work((10**6, 1, 4)))[0] < waves


def test_blocks_with_a_ring_overlap_the_next_tile() -> None:
    ring = Division(2, 32, 0, 0, 256, 1.0, flows=True), Launch(256, 1, 112 * 1024, 1, splits=264, persistent=True)
    found = kernels((ring, (10**6, 8, 48), 60.0))
    at = found.us([ring[1]], work((10**7, 8, 4)))[0]
    parts = found.us([ring[1]], work((10**4, 8, 25600)))[0]  # a hundred parts of k
    assert at < 1.6 * work((10**7, 8, 4)).memory_us
    assert parts > work((10**4, 8, 25600)).memory_us
    assert found.best(work((1000, 8, 48)))[1].splits == 32  # its rows alone are divided: strips of 32


def plain_us(one: tuple[Division, Launch], shape: tuple[int, int, int], **more: Any) -> float:
    """By the card's rates alone."""
    measured = [Measured(work(shape, **more), one[1].rows_per_block, one[1].splits, 1.0)]
    found = Kernels([one[0]], [one[1]], [measured[0].work], [measured], CARD)
    return float(found.unmeasured_us([measured])[0, 0])


def test_parts_of_k_take_half_a_microsecond_each() -> None:
    ring = Division(2, 32, 0, 0, 1, 1.0, flows=True), Launch(256, 1, 112 * 1024, 1, splits=264, persistent=True)
    shape = (8448, 1, 4000)  # a strip for each block; after each product C is written
    without = replace(ring[0], deepest=0), ring[1]
    rewritten = 2 * 3999 * 8448 * 4e-3 / CARD.read_gbytes_per_s
    body, bytes_alone = (plain_us(one, shape) - 5 for one in (ring, without))
    assert body == pytest.approx(np.hypot(bytes_alone + rewritten, 0.5 * 3999), rel=0.01)
    assert body > 0.5 * 3999


def test_one_tile_for_each_block_takes_no_turn_more() -> None:
    one = Division(8, 128, 8, 8, 0, 1.0), Launch(128, 128, 0, 8)
    shape = (128 * SMS, 8, 64)
    assert plain_us(one, shape) == pytest.approx(5 + work(shape).least_us, abs=0.05)  # B again for each block


def test_a_blocks_passes_are_turns_where_there_are_few_blocks() -> None:
    one = Division(8, 128, 1, 8, 0, 1.0, cached_rate=1e9), Launch(128, 128, 0, 0)  # a pass for each column
    shape = (128 * 4, 64, 8)
    assert plain_us(one, shape) > 5 + 0.5 * 63
    assert plain_us(one, shape) == pytest.approx(5 + 0.5 * 63, rel=0.05)


def test_odd_lines_make_turns_longer_too() -> None:
    one = Division(8, 128, 1, 8, 0, 2.0), Launch(128, 128, 0, 0)
    shape = (128 * 4, 64, 8)
    odd, even = (plain_us(one, shape, has_odd_lines=odd) - 5 for odd in (True, False))
    assert odd == pytest.approx(2 * even)


def test_far_away_doubt_grows_faster_than_distance() -> None:
    """At 7 units of distance beside 1: e to the 0.3 are 1.35 times, where the distance alone would be 1.29 times."""
    near, far = (20480, 8, 20480 // 3), (20480, 8, 22)
    at = work(R)
    plain = plain_us(SPLIT, R)
    ones = [
        ((SPLIT[0], SPLIT[1]), shape, ratio * plain_us(SPLIT, shape)) for shape, ratio in ((near, 1.32), (far, 1.0))
    ]
    found = kernels(*ones)
    assert found.best(at, doubt=0.0)[0] == 1
    assert found.best(at)[0] == 0
    assert plain > 50


def test_no_kernel_is_expected_to_be_faster_than_the_memory() -> None:
    impossible = kernels((SPLIT, R, 40.0))
    shape = (20480, 8, 40960)
    assert impossible.best(work(shape))[2] == 0.95 * work(shape).memory_us
    assert impossible.us([SPLIT[1]], work(shape)) == [0.95 * work(shape).memory_us]


@pytest.mark.parametrize("m", [1, 8, 100, 1000, 10**4, 10**5])
def test_a_product_of_few_rows_takes_little(m: int) -> None:
    found = kernels((LOOPING, (10**7, 16, 16), 332.0))
    assert 5 < found.best(work((m, 8, 8)))[2] < 15


@pytest.mark.parametrize("shape", [(1, 1, 2**28), (8, 8, 2**24), (1, 4, 2**40)])
def test_a_grid_has_no_more_splits_than_it_can(shape: tuple[int, int, int]) -> None:
    held = Division(2, 4, 8, 64, 0, 1.03, longest=256), Launch(128, 40, 4096, 8, splits=2)
    for one in (held, SPLIT):
        _, launch, _ = kernels((one, (2000, 8, 4096), 30.0)).best(work(shape))
        assert launch.splits <= 65535


def test_a_block_has_no_more_rows_than_a_launch_can_say() -> None:
    held = Division(2, 4, 8, 64, 0, 1.03), Launch(128, 40, 4096, 8)
    assert kernels((held, (5000, 8, 4096), 30.0)).best(work((2**55, 1, 1)))[1].rows_per_block <= 2**30


def test_the_vendors_time_grows_with_the_least_time() -> None:
    routines = Routines([work(R)], [400.0])
    assert routines.us(work(R)) == pytest.approx(400)
    assert routines.us(work((20480, 8, 2 * 20480))) == pytest.approx(800, rel=0.1)


def test_the_vendor_computes_whole_tiles() -> None:
    filled, partly = (500_000, 64, 64), (500_000, 33, 33)
    routines = Routines([work(filled)], [400.0])
    assert routines.us(work(filled)) == pytest.approx(400.0)
    assert routines.us(work(partly)) > 0.6 * 400.0  # 0.27 times the operations, and half of the bytes


def test_the_vendors_vectors_tell_little_of_its_matrices() -> None:
    """The vendor computes vectors by another routine, which has no tiles."""
    column, matrix = (20480, 1, 20480), (20480, 2, 20480)
    routines = Routines([work(column), work((20480, 8, 20480))], [1000.0, 400.0])
    assert routines.us(work(column)) == pytest.approx(1000, rel=0.02)
    assert routines.us(work(matrix)) == pytest.approx(400, rel=0.15)
    routines = Routines([work((10**6, 8, 8))], [50.0])
    for vector, tiled in (((10**6, 1, 8), (10**6, 2, 8)), ((1, 10**6, 8), (2, 10**6, 8))):
        assert routines.us(work(vector)) < 0.5 * routines.us(work(tiled))


def test_the_vendors_time_is_interpolated() -> None:
    small = (100, 8, 1000)
    routines = Routines([work(R), work(small)], [400.0, 50.0])
    assert routines.us(work(R)) == pytest.approx(400, rel=0.02)
    assert routines.us(work((110, 8, 1100))) == pytest.approx(50, rel=0.1)


def test_expected_times_are_near_the_measured_ones() -> None:
    """Over the winners of this project's own results: the constants are fitted to them."""
    facts = json.loads((Path(__file__).parents[1] / "benchmarks/results/h200-versus-cublas.json").read_text())
    limits = PROFILES["h200"]
    card = Card(limits.sms, facts["read_gbytes_per_s"], facts["copy_gbytes_per_s"], facts["gflops"])
    found = [one for one in (won(row, limits) for row in facts["rows"]) if one is not None]
    ratios = np.abs(np.log([ratio for of in errors(found, card).values() for ratio in of]))
    assert len(ratios) > 500
    assert np.quantile(ratios, 0.5) < 0.03
    assert np.quantile(ratios, 0.9) < 0.1


def test_plans_are_sorted_by_predicted_time() -> None:
    found = kernels((SHARING, (20480, 64, 20480), 800.0), (SPLIT, R, 500.0))
    at = work((5000, 8, 30000))
    ways = found.ways(at, 3)
    times = [us for *_, us in ways]
    assert times == sorted(times)
    for kernel, (_, launch) in enumerate((SHARING, SPLIT)):
        own = [(way, us) for place, way, us in ways if place == kernel]
        assert 2 <= len(own) <= 3
        assert len({way.splits for way, _ in own}) == len(own)
        assert own[0][1] == pytest.approx(found.least(at)[0][kernel, 0])
        assert {way.with_splits(launch.splits) for way, _ in own} == {launch}
    best = found.best(at, doubt=0.0)
    assert ways[0] == best
    assert found.ways(at, 1) == [
        next(way for way in ways if way[0] == place) for place in (ways[0][0], 1 - ways[0][0])
    ]


@pytest.mark.parametrize(
    ("fewer", "slowed"),
    [
        (1.0, (1.0, 1.0)),
        (2.0, (math.sqrt(2 / 1.25), 2.0)),  # the second kernel goes on from piece to piece
        (6.0, (3.0, 6.0)),
        (0.5, (math.sqrt(1.0625 / 1.25),) * 2),
        (0.1, (math.sqrt(1.0625 / 1.25),) * 2),
    ],
)
def test_blocks_fewer_and_more_than_where_a_kernel_won(fewer: float, slowed: tuple[float, float]) -> None:
    found = kernels((SPLIT, R, 380.0), (SHARING, (20480, 64, 20480), 800.0))
    assert found._slowed(np.full((2, 1), fewer))[:, 0] == pytest.approx(slowed)
