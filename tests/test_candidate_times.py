"""The predicted times of candidates."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.device.roofline import data_sheet
from tsm2_tune.generator.families import family_named, parse_config
from tsm2_tune.generator.families.stream_a import StreamAFmaConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.generator.space.guidelines import Guidelines
from tsm2_tune.tuner.packs.candidate_times import candidate_times_us

H200 = PROFILES["h200"]
R = Problem(20480, 8, 20480, "f32")
TSMR = StreamAFmaConfig(128, 1, 8, 8, 4, splits=13, row_tiles=1, min_blocks=4)
RESULTS = Path("benchmarks/results/h200-versus-cublas.json")


def candidate(config: KernelConfig = TSMR, problem: Problem = R, limits: DeviceLimits = H200) -> Candidate:
    return Candidate(family_named(config.family), config, problem, limits, Guidelines())


def parsed(text: str) -> KernelConfig:
    config = parse_config(text)
    assert config is not None
    return config


GEMM = parsed("gemm:block=128x128x16,threads=16x16,threads_a=16x16,threads_b=16x16,vector=4,read=nc")
ONE_TILE = Problem(100, 100, 10**6, "f32", "tn")
TWO_WAVES = Problem(128 * 264, 128, 4096, "f32")  # two tiles a multiprocessor, both resident
SMALL, FLAT = Problem(128, 8, 20480, "f32"), Problem(20480, 8, 512, "f32")


def us(one: Candidate) -> float:
    (found,) = candidate_times_us([one])
    return float(found)


def split(splits: int, problem: Problem) -> Candidate:
    return candidate(replace(TSMR, splits=splits), problem)


LAUNCH_US = us(candidate(replace(TSMR, splits=1), Problem(1, 1, 1, "f32")))


@pytest.mark.parametrize(
    ("slow", "times", "fast"),
    [
        (candidate(limits=replace(H200, dram_gbytes_per_s=H200.dram_gbytes_per_s / 4)), 3, candidate()),
        (candidate(replace(TSMR, prefetch=1, stages=1)), 1.3, candidate()),  # few bytes in flight
        (candidate(GEMM, replace(TWO_WAVES, m=128 * 265)), 1.3, candidate(GEMM, TWO_WAVES)),  # a last wave
        (split(1, SMALL), 1, split(2, SMALL)),  # the kernel is too slow with few blocks
        (split(2, SMALL), 1, split(48, SMALL)),
        (split(48, FLAT), 1.2, split(4, FLAT)),  # sums of splits
        (candidate(GEMM, ONE_TILE), 1 / 1.1, candidate(GEMM, replace(ONE_TILE, m=1280, n=1280))),  # 100 tiles
        (candidate(replace(TSMR, threads=2048)), 1e300, candidate()),  # it does not fit, and takes for ever
    ],
)
def test_what_is_slower_is_predicted_slower(slow: Candidate, times: float, fast: Candidate) -> None:
    assert us(slow) > times * us(fast)


def test_a_full_launch_runs_at_the_bandwidth_and_one_tile_does_not() -> None:
    floor_us = data_sheet(H200).memory_us(R)
    assert floor_us < us(candidate()) - LAUNCH_US < 1.1 * floor_us
    one = candidate(GEMM, ONE_TILE)
    assert one.launch.blocks(ONE_TILE.m, ONE_TILE.n) == 1
    flops_per_us = dict(data_sheet(H200).gflops)["f32"] * 1e3 / 132
    assert 1 < us(one) * flops_per_us / (ONE_TILE.flops * 1.28**2) < 1.1  # a tile of 128 x 128


def test_candidates_of_several_problems_and_devices_are_predicted_at_once() -> None:
    every = [candidate(), candidate(problem=replace(R, m=64)), candidate(limits=PROFILES["a100"]), candidate()]
    assert candidate_times_us(every).tolist() == [us(one) for one in every]
    assert candidate_times_us([]).shape == (0,)


def test_winners_took_about_as_long_as_predicted() -> None:
    """The winners were measured on an H200."""
    rows = json.loads(RESULTS.read_text())["rows"]
    winners = [
        candidate(parsed(row["configuration"]), Problem(row["m"], row["n"], row["k"], row["dtype"], row["op"]))
        for row in rows
    ]
    ratios = np.sort(candidate_times_us(winners) / [row["ours_us"] for row in rows])
    assert 0.65 < ratios[0] < ratios[-1] < 2.5
    assert 0.75 < ratios[len(ratios) // 100] < ratios[-len(ratios) // 100] < 1.35
