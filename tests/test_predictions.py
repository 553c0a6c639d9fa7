"""Predicted times and launches of kernels, and of cuBLAS, at shapes that were not tuned."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.expected import errors, won
from tests.predicted import GPU, RATES, SMS, Kind, Shape, core, core_times, measured, product
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.tiling import Tiling
from tsm2_tune.runtime.choice.choose import Layout, core_record
from tsm2_tune.runtime.choice.core import PREDICTED, TUNED
from tsm2_tune.runtime.choice.launch import Launch
from tsm2_tune.tuner.packs.core_pack import PRIOR_GAIN_ERROR, DeviceRates, core_of

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("toolchain", "session_cache")]

SPLIT = Tiling(8, 256, 8, 16, 0, 1.03), Launch(64, 256, 4096, 8, splits=13)
LOOPING = Tiling(6, 128, 0, 64, 0, 1.03), Launch(128, 512, 4096, 0)
SHARING = Tiling(2, 128, 64, 32, 0, 1.3), Launch(128, 128, 65536, 64, splits=264, persistent=True)
R, L, WIDE = (20480, 8, 20480), (10**7, 8, 8), (20480, 64, 20480)


def rates_us(kind: Kind, shape: Shape, won_at: Shape | None = None, *, splits: int = 0) -> float:
    """The time from the device's rates alone, at the kernel's own shape unless `won_at` is that."""
    rows, splits = kind[1].rows_per_block, splits or kind[1].splits
    return core(measured(kind, won_at or shape, 1.0)).rates_us(0, core_times((shape, rows, splits)))[0]


def best(kind: Kind, won_at: Shape, us: float, shape: Shape, *others: tuple[Shape, float]) -> tuple[float, Launch]:
    """The predicted time of the kernel at the shape, and its launch."""
    found, rows, splits = core(measured(kind, won_at, us, *others)).predict(0, product(shape))
    return found, replace(kind[1], rows_per_block=rows, splits=splits)


def vendor_us(shape: Shape, *times: tuple[Shape, float]) -> float:
    """The predicted time of cuBLAS, from these measured ones."""
    one = core(measured(LOOPING, (1000, 8, 1000), 50.0, vendor_times=times))
    return float(one.choose(product(shape), GPU).vendor_us)


def test_a_time_is_the_start_and_the_body_of_its_terms() -> None:
    """docs/prediction.md computes this example."""
    rates = DeviceRates(100, read_gbytes_per_s=4000.0, copy_gbytes_per_s=4000.0, gflops={"f32": 50000.0})
    tiling = Tiling(resident=2, tile_m=128, tile_n=32, k_step=0, k_per_pass=0, without_vectors=1.0)
    kind = tiling, Launch(128, 128, 4096, 32)
    m, n, k = shape = 38400, 32, 1000  # 300 tiles of C, a block for each; 200 blocks are resident
    once = (m * k + k * n + m * n) * 4 / 4e6  # 39.66 us: bytes over bytes per microsecond
    again = 299 * k * n * 4 / 4e6 / 1.2  # 7.97 us: the other blocks read B again, partly from the L2
    flops = 2 * m * n * k / 50e6  # 49.15 us: operations over operations per microsecond
    uneven = 2 * 200 / 300  # two waves take as long as 400 blocks
    memory = (once + again) * (
        1 + 0.3 * (uneven - 1)
    )  # 52.40 us: busy multiprocessors use most of the idle ones' rate
    arithmetic = flops * uneven  # 65.54 us
    serial = 0.5 * (2 - 1)  # 0.5 us: from one tile to the next, for a block that computes two
    time = 5.0 + math.hypot(memory, arithmetic, serial)  # 88.91 us, with 5 us until the launch starts and ends
    assert [round(us, 2) for us in (once, again, memory, arithmetic, time)] == [39.66, 7.97, 52.40, 65.54, 88.91]
    found = core(measured(kind, shape, 100.0), rates=rates).rates_us(0, core_times((shape, 128, 1)))
    assert found == pytest.approx([time])


def test_the_distance_is_printed_with_the_shape_to_which_it_is_measured() -> None:
    """The second kernel has no known occupancy, so the kernel with the nearest own shape is chosen."""
    own, other, far = (1000, 8, 1000), (20480, 8, 20480), (2, 1, 2)
    chooser = core(measured(SPLIT, own, 20.0, (other, 400.0)), replace(measured(SPLIT, far, 5.0), tiling=None))
    found = chooser.choose(product((20480, 8, 7534)), GPU)
    assert chooser.explanation(found, GPU).endswith("for 1000x8x1000: measured at 20480x8x20480, at distance 1.0")
    found = chooser.choose(product((1000, 8, 2718)), GPU)
    assert chooser.explanation(found, GPU).endswith(": tuned for 1000x8x1000, at distance 1.0")


@pytest.mark.parametrize(("times_k", "is_vendors"), [(2, False), (200, True)])
def test_a_gain_that_is_too_uncertain_is_printed_with_the_error(times_k: int, is_vendors: bool) -> None:
    m, n, k = R
    chooser = core(measured(SPLIT, R, 380.0, vendor_us=600.0))
    found = chooser.choose(product((m, n, k * times_k)), GPU)
    gain = found.vendor_us / found.us
    least = math.exp(0.9 * PRIOR_GAIN_ERROR * math.hypot(1, 0.9 * math.log(times_k)))
    printed = f"; the predicted gain of {gain:.2f} x is too uncertain: at least {least:.2f} x is needed"
    assert (found.is_vendors, gain < least) == (is_vendors, is_vendors)
    assert gain > 1.2
    assert chooser.explanation(found, GPU).endswith(printed) == is_vendors


@pytest.mark.parametrize(
    ("shape", "squared"),
    [
        ((20480, 8, 40960), math.log(2) ** 2),
        ((20480, 9, 20480), math.log(9 / 8) ** 2 + math.log(16 / 9) ** 2),  # 9 columns are padded to 16
        ((20479, 8, 20480), 2),  # columns of A and C are no whole vectors
    ],
)
def test_the_error_factor_grows_with_extents_padding_and_vectors(shape: Shape, squared: float) -> None:
    tiling = Tiling(8, 256, 8, 16, 0, 1.03, n_padding=8)
    found = core(measured((tiling, SPLIT[1]), R, 380.0, vendor_times=[(shape, 600.0)])).choose(product(shape), GPU)
    assert found.error_factor == pytest.approx(math.hypot(1, 0.9 * math.sqrt(squared)), rel=1e-3)


@pytest.mark.parametrize("us", [380.0, 800.0])
def test_a_measured_time_is_predicted_again(us: float) -> None:
    assert best(SPLIT, R, us, R)[0] == pytest.approx(us, rel=0.1)


def test_a_short_measured_time_hardly_changes_a_long_prediction() -> None:
    ratios = [best(SPLIT, (300, 8, 1000), 16.0, at)[0] / best(SPLIT, (300, 8, 1000), 8.0, at)[0] for at in (L, R)]
    assert all(1 < ratio < 1.1 for ratio in ratios)


def test_the_nearest_measured_time_counts_most() -> None:
    other, far = (20480, 20, 20480), (5000, 8, 3000)
    plain = [best(SPLIT, R, 380.0, at)[0] for at in (R, other, far)]
    found = [best(SPLIT, R, 380.0, at, (other, 2 * plain[1]))[0] for at in (R, other, far)]
    ratios = [one / two for one, two in zip(found, plain, strict=True)]
    assert ratios[:2] == pytest.approx([1, 2], rel=0.01)
    assert 1 < ratios[2] < 1.5


def test_a_measured_time_with_unaligned_lines_counts_for_unaligned_lines() -> None:
    odd, near = (20479, 8, 20479), [(20484, 8, 20484), (20483, 8, 20483)]
    twice = odd, 2 * best(SPLIT, R, 380.0, odd)[0]
    ratios = [best(SPLIT, R, 380.0, at, twice)[0] / best(SPLIT, R, 380.0, at)[0] for at in near]
    assert ratios[0] < 1.01
    assert ratios[1] > 1.9


def test_a_tuned_time_does_not_hold_for_lines_that_are_odd_alone() -> None:
    (m, _, k), known = R, core(measured(SPLIT, R, 400.0, vendor_us=500.0))
    found = [
        known.choose(core_record("f32", R, ((lda, 0), (k, 0), (m, 0)), (False, False), is_gram=False), GPU)
        for lda in (m, m + 4, m + 1)
    ]
    assert [one.reason for one in found] == [TUNED, TUNED, PREDICTED]
    assert [one.us for one in found[:2]] == [400.0, 400.0]
    assert found[2].us > 1.02 * 400
    assert [(one.distance, one.measured_us) for one in found] == [(0.0, 400.0)] * 3


def test_no_kernel_is_predicted_to_beat_the_memory_or_arithmetic() -> None:
    (m, n, k), slow = (20480, 8, 40960), replace(RATES, gflops={}, copy_gbytes_per_s=4700.0)
    us, *_ = core(measured(SPLIT, R, 40.0), rates=slow).predict(0, product((m, n, k)))
    assert us == pytest.approx(0.95 * (m * k + k * n + m * n) * 4 / 4.7e6)
    shape = m, n, k = (64, 64, 2_000_000)  # the measured time is far below what the rates allow
    for op, share in (("nn", 1.0), ("tx", 65 / 128)):
        us, *_ = core(measured(SPLIT, (64, 64, 1_000_000), 20.0, op=op)).predict(
            0, Layout.of_op("f32", shape, op).record
        )
        assert us == pytest.approx(share * 2 * m * n * k / (RATES.gflops["f32"] * 1e3))


@pytest.mark.parametrize("kind", [SPLIT, LOOPING, SHARING])
@pytest.mark.parametrize("extent", range(3))
def test_a_larger_product_takes_longer(kind: Kind, extent: int) -> None:
    shapes = [tuple(x * 8**step if at == extent else x for at, x in enumerate((512, 8, 512))) for step in range(5)]
    times = [best(kind, WIDE, 800.0, shape)[0] for shape in shapes]  # type: ignore[arg-type]
    assert times == sorted(set(times))


@pytest.mark.parametrize("m", [1, 8, 100, 1000, 10**4, 10**5])
def test_a_product_of_few_rows_takes_little_more_than_a_start(m: int) -> None:
    assert 5 < best(LOOPING, (10**7, 16, 16), 332.0, (m, 8, 8))[0] < 15


def test_fewer_blocks_than_at_its_shape_slow_a_kernel_down() -> None:
    for splits in (264, 132, 66):
        assert rates_us(SHARING, WIDE, splits=splits // 2) > 1.6 * rates_us(SHARING, WIDE, splits=splits)


@pytest.mark.parametrize("kind", [SPLIT, LOOPING, SHARING])
def test_the_launch_is_nearly_the_best_of_all(kind: Kind) -> None:
    random = np.random.default_rng(7)
    found = core(measured(kind, R, 380.0))
    for shape in np.exp(random.uniform(0, np.log((10**6, 64, 30000)), (30, 3))).astype(int).tolist():
        _, rows, splits = found.predict(0, product(shape))
        most = 1 if kind is LOOPING else -(-shape[2] // 16) if kind is SPLIT else 264
        tried = (splits, *range(1, min(most, 200) + 1))
        us, *others = found.rates_us(0, core_times(*((shape, rows, one) for one in tried)))
        assert us <= 1.25 * min(others)


@pytest.mark.parametrize("m", [300, 2048, 5000, 20480, 10**6])
def test_splits_of_k_give_every_multiprocessor_a_block(m: int) -> None:
    assert best(SPLIT, R, 380.0, (m, 8, 20480))[1].blocks(m, 8) >= 0.9 * SMS


@pytest.mark.parametrize(
    ("kind", "won_at", "us", "shape", "rows_and_splits"),
    [
        (SPLIT, R, 380.0, (300, 8, 40), (256, 3)),  # no split is empty
        (SHARING, WIDE, 800.0, (128, 8, 320), (128, 10)),  # a persistent block has at least one step
        (SHARING, WIDE, 800.0, (128, 8, 32), (128, 1)),
        (SHARING, WIDE, 800.0, (10**6, 64, 4096), (128, 264)),
        (LOOPING, L, 160.0, (10**7, 8, 8), (512, 1)),
        (LOOPING, L, 160.0, (400_000, 8, 8), (384, 1)),  # as many rows as give every multiprocessor its blocks
        (LOOPING, L, 160.0, (100_000, 8, 8), (128, 1)),
    ],
)
def test_no_block_is_without_work(
    kind: Kind, won_at: Shape, us: float, shape: Shape, rows_and_splits: tuple[int, int]
) -> None:
    launch = best(kind, won_at, us, shape)[1]
    assert (launch.rows_per_block, launch.splits) == rows_and_splits


@pytest.mark.parametrize("shape", [(1, 1, 2**28), (8, 8, 2**24), (1, 4, 2**40), (2**55, 1, 1)])
@pytest.mark.parametrize("tiling", [SPLIT[0], Tiling(2, 4, 8, 64, 0, 1.03, k_of_resident_b=256)])
def test_a_grid_is_within_the_bounds_of_cuda(shape: Shape, tiling: Tiling) -> None:
    for splits in (1, 2):
        launch = best((tiling, Launch(128, 40, 4096, 8, splits=splits)), (2000, 8, 4096), 30.0, shape)[1]
        assert launch.splits <= 65535
        assert launch.rows_per_block <= 2**30


@pytest.mark.parametrize(
    ("again", "shape", "won_at"),
    [
        (replace(LOOPING[0], k_per_pass=8), (10**7, 8, 64), L),  # C is read and written again for each pass over k
        (replace(LOOPING[0], tile_n=3), (10**7, 18, 19), (10**7, 3, 48)),  # A is read again for each column of tiles
    ],
)
def test_reading_or_writing_again_takes_longer(again: Tiling, shape: Shape, won_at: Shape) -> None:
    assert rates_us((again, LOOPING[1]), shape, won_at) > 1.5 * rates_us(LOOPING, shape, won_at)


@pytest.mark.parametrize(("n", "shares"), [(20, True), (24, False)])  # rows of C of 80 and 96 bytes
def test_sectors_that_columns_of_tiles_share_are_moved_again(n: int, shares: bool) -> None:
    tiling = replace(SHARING[0], tile_m=32, tile_n=8, k_step=0, is_pipelined=True)
    shape, ring = (10**7, n, 4), (tiling, replace(SHARING[1], rows_per_block=1))
    row_major, column_major = (
        core(measured(ring, (10**7, 8, 4), 150.0, op=op)).predict(0, Layout.of_op("f32", shape, op, 1).record)[0]
        for op in ("ttt", "nn")
    )
    assert (row_major > 1.2 * column_major) == shares
    assert shares or row_major == pytest.approx(column_major, rel=0.01)


@pytest.mark.parametrize(("k", "chosen"), [(7, 0), (9, 1)])
def test_a_kernel_is_avoided_if_k_exceeds_its_pass(k: int, chosen: int) -> None:
    in_passes = replace(LOOPING[0], k_per_pass=8), LOOPING[1]
    kernels = measured(in_passes, L, 160.0), measured(LOOPING, L, 320.0)
    assert core(*kernels).choose(product((10**7, 8, k)), GPU).kernel == chosen
    assert best(in_passes, (10**7, 8, 9), 400.0, (10**7, 8, 9))[0] == pytest.approx(400, rel=0.01)


@pytest.mark.parametrize(("n", "columns"), [(1, 8), (8, 8), (9, 16), (60, 64), (64, 64)])
def test_padded_columns_are_multiplied_too(n: int, columns: int) -> None:
    slow = replace(SHARING[0], arithmetic_rate=1e-3)
    by_eight, by_tile = (rates_us((replace(slow, n_padding=by), SHARING[1]), (20480, n, 20480)) for by in (8, 0))
    assert by_eight / by_tile == pytest.approx(columns / 64, rel=0.01)


def test_tiles_one_after_the_other_take_time_unless_pipelined() -> None:
    lanes = Tiling(8, 1, 1, 512, 0, 1.03), Launch(256, 1, 0, 1)  # a block for each row
    waves = 10**6 / (SMS * 8)
    assert 0.5 * (waves - 1) < best(lanes, (2000, 1, 20480), 70.0, (10**6, 1, 4))[0] < waves
    tiling = replace(SHARING[0], tile_m=32, tile_n=0, k_step=0, is_pipelined=True)
    ring = tiling, replace(SHARING[1], rows_per_block=1)
    assert best(ring, (10**6, 8, 48), 60.0, (10**7, 8, 4))[0] < 1.6 * (10**7 * 12 * 4) / 4.7e6


@pytest.mark.parametrize(
    ("of_c", "op", "shape", "lds", "odd"),
    [
        (False, "nn", (64, 8, 5), {}, True),  # B has lines of 5
        (True, "nn", (64, 8, 5), {}, False),
        (True, "nn", (65, 8, 1), {}, True),  # C's; A is one line
        (False, "nn", (65, 8, 1), {"lda_columns": 68, "ldb_columns": 4}, False),
        (True, "nn", (65, 8, 4), {"lda_columns": 68, "ldb_columns": 5, "ldc_columns": 68}, False),
        (True, "nn", (64, 8, 4), {"ldc_columns": 65}, True),
        (True, "ttt", (64, 7, 4), {}, True),
        (True, "ntt", (63, 8, 4), {}, True),  # A has k lines of m
        (True, "ttt", (64, 8, 4), {"lda_rows": 5, "ldb_rows": 8}, True),
    ],
)
def test_unaligned_lines_of_a_and_of_b_or_c_take_longer(
    of_c: bool, op: str, shape: Shape, lds: dict[str, int], odd: bool
) -> None:
    tilings = [replace(LOOPING[0], without_vectors=ratio, c_vector_bytes=16 * of_c) for ratio in (1.0, 2.0)]
    kernels = [measured((tiling, LOOPING[1]), (64, 8, 64), 1e6, op=op) for tiling in tilings]
    found = core(*kernels, rates=DeviceRates(SMS, 1e-3, 1e-3, {}))  # the body is nearly all of the time
    leading = [(lds.get(f"ld{x}_columns", 0), lds.get(f"ld{x}_rows", 0)) for x in "abc"]
    asked = core_record("f32", shape, leading, (False, False), is_gram=False)
    plain, slower = (found.predict(at, asked)[0] for at in (0, 1))
    assert slower / plain == pytest.approx(2.0 if odd else 1.0, rel=0.05)


@pytest.mark.parametrize(
    ("shape", "lds"), [((64, 8, 5), {"lda_rows": 8}), ((64, 7, 8), {"ldc_rows": 8}), ((64, 8, 80), {})]
)
def test_lanes_that_hold_rows_need_whole_and_short_lines(shape: Shape, lds: dict[str, int]) -> None:
    leading = [(0, lds.get(f"ld{x}_rows", 0)) for x in "abc"]
    asked = core_record("f32", shape, leading, (False, False), is_gram=False)
    times = []
    for k_of_vectors in (0, 64):
        tiling = replace(LOOPING[0], without_vectors=2.0, c_vector_bytes=16, k_of_vectors=k_of_vectors)
        kernel = measured((tiling, LOOPING[1]), (64, 8, 64), 1e6, op="ttt")
        times.append(core(kernel, rates=DeviceRates(SMS, 1e-3, 1e-3, {})).predict(0, asked)[0])
    assert times[1] / times[0] == pytest.approx(2.0, rel=0.05)


def test_cublas_has_the_time_that_was_measured_near_the_shape() -> None:
    times = (R, 400.0), ((100, 8, 1000), 50.0)
    assert vendor_us(R, *times) == pytest.approx(400, rel=0.02)
    assert vendor_us((112, 8, 1100), *times) == pytest.approx(50, rel=0.1)
    assert vendor_us((20480, 8, 2 * 20480), (R, 400.0)) == pytest.approx(800, rel=0.1)
    assert vendor_us((20480, 8, 20479), (R, 400.0)) == pytest.approx(440, rel=0.02)  # its lines are odd


def test_cublas_takes_rests_of_lines_that_a_kernel_does_not() -> None:
    asked = core_record("f32", (64, 8, 5), [(0, 8), (0, 8), (0, 8)], (False, False), is_gram=False)
    times = []
    for k_of_vectors in (0, 64):
        kernel = measured((replace(LOOPING[0], k_of_vectors=k_of_vectors), LOOPING[1]), (64, 8, 8), 50.0, op="ttt")
        found = core(replace(kernel, winner=replace(kernel.winner, vendor_us=60.0, vendor_right=1)))
        times.append(found.choose(asked, GPU).vendor_us)
    assert times[0] == times[1] > 0


def test_cublas_computes_whole_tiles_but_not_of_vectors() -> None:
    filled = (500_000, 64, 64), 400.0
    assert vendor_us((500_000, 36, 36), filled) > 0.6 * 400.0  # 0.32 times the operations, and half of the bytes
    column, matrix = (20480, 1, 20480), (20480, 2, 20480)
    times = (column, 1000.0), (R, 400.0)
    assert vendor_us(column, *times) == pytest.approx(1000, rel=0.02)
    assert vendor_us(matrix, *times) == pytest.approx(400, rel=0.15)


@pytest.mark.parametrize(("right", "us"), [(1, 50.0), (0, 0.0)])
def test_a_time_of_cublas_with_a_wrong_result_is_not_used(right: int, us: float) -> None:
    one = core(measured(SPLIT, R, 380.0, vendor_us=50.0, vendor_right=right))
    near = one.choose(product((20480, 8, 20484)), GPU).vendor_us
    assert (one.choose(product(R), GPU).vendor_us, near) == (us, pytest.approx(us, rel=0.01))


def test_a_kernel_measured_near_is_chosen_before_one_measured_far_away() -> None:
    """At distances of 1.1 and 6.8, a third more time is not enough to prefer the second."""
    near, far = (20480, 8, 20480 // 3), (20480, 8, 22)
    kernels = [measured(SPLIT, at, ratio * rates_us(SPLIT, at)) for at, ratio in ((near, 1.32), (far, 1.0))]
    found = core(*kernels)
    assert found.predict(1, product(R))[0] < found.predict(0, product(R))[0]
    assert found.choose(product(R), GPU).kernel == 0


def test_contenders_are_few_fast_launches_sorted_by_time() -> None:
    kernels = [measured(SHARING, WIDE, 800.0 + at) for at in range(20)]
    kernels += [measured(SPLIT, R, 500.0), measured(LOOPING, L, 10**5)]
    found, at = core(*kernels), product((5000, 8, 30000))
    contenders, chosen = found.contenders(at, GPU), found.choose(at, GPU)
    launches = [(one.kernel, one.rows_per_block, one.splits) for one in contenders]
    times = [one.us for one in contenders[1:]]
    assert launches[0] == (chosen.kernel, chosen.rows_per_block, chosen.splits)
    assert len(set(launches)) == len(launches) == 20
    assert max(sum(kernel == one for kernel, *_ in launches) for one in range(22)) == 2
    assert times == sorted(times)
    assert times[-1] <= 2 * min(times[0], chosen.us)
    found = core(measured(SPLIT, R, 380.0), measured(SHARING, WIDE, 8000.0))  # none takes twice the least time
    assert {one.kernel for one in found.contenders(product((20480, 16, 20480)), GPU)} == {0}


def test_predicted_times_are_near_the_measured_ones() -> None:
    """Over the winners of this project's own results: the constants are fitted to them."""
    facts = json.loads((Path(__file__).parents[1] / "benchmarks/results/h200-versus-cublas.json").read_text())
    limits = PROFILES["h200"]
    rates = DeviceRates(limits.sms, facts["read_gbytes_per_s"], facts["copy_gbytes_per_s"], facts["gflops"])
    found = [one for one in (won(row, limits) for row in facts["rows"]) if one is not None]
    ratios = np.abs(np.log([ratio for of in errors(found, rates).values() for ratio in of]))
    assert len(ratios) > 500
    assert np.quantile(ratios, 0.5) < 0.03
    assert np.quantile(ratios, 0.9) < 0.1


def gram(m: int, k: int) -> bytes:
    """The product of a transposed column-major matrix and itself, into a column-major C."""
    return core_record("f32", (m, m, k), ((0, k), (k, 0), (m, 0)), (False, False), is_gram=True)


def test_kernels_of_this_gpu_come_first_for_the_transposed_product_too() -> None:
    of_transposed, elsewhere = (measured(LOOPING, R, 90.0, op=op) for op in ("ttt", "nn"))
    elsewhere = replace(elsewhere, winner=replace(elsewhere.winner, device="another GPU"))
    both = core_of([elsewhere, of_transposed], {GPU: RATES, "another GPU": RATES})
    for device, kernel, is_other in ((GPU, 1, 0), ("another GPU", 0, 0), ("a third GPU", 0, 1)):
        found = both.choose(product(R), device)
        assert (found.kernel, found.is_of_other_device, found.is_transposed) == (kernel, is_other, kernel)


@pytest.mark.parametrize(("us", "kernel"), [(20.0, 0), (10.0, 1), (5.0, 1)])
def test_a_gram_kernel_is_used_at_its_shape_unless_it_is_slower(us: float, kernel: int) -> None:
    kernels = measured(SPLIT, (8, 8, 10**6), 10.0, op="tn"), measured(SPLIT, (8, 8, 10**6), us, op="tx")
    assert core(*kernels).choose(gram(8, 10**6), GPU).kernel == kernel


def test_cublas_reads_one_matrix_of_a_gram_product_whatever_kernel_is_near() -> None:
    times = [((16, 16, 10**6), 60.0)]
    measured_beside = measured(SPLIT, (8, 8, 10**6), 50.0, op="tx", vendor_times=times)
    near = measured(SPLIT, (15, 15, 10**6), 50.0, op="tn")
    found = [
        core(*kernels).choose(gram(15, 999_996), GPU) for kernels in ([measured_beside], [measured_beside, near])
    ]
    assert found[0].vendor_us == found[1].vendor_us > 0
