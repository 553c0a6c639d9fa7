"""The predicted times of candidates."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np

from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.device.roofline import data_sheet
from tsm2_tune.generator.families import family_named, parse_config
from tsm2_tune.generator.families.gemm import GemmConfig
from tsm2_tune.generator.families.stream_a import StreamAFmaConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.generator.space.guidelines import Guidelines
from tsm2_tune.generator.space.seeds import first_choices
from tsm2_tune.tuner.packs.candidate_times import candidate_times_us

H200 = PROFILES["h200"]
R = Problem(20480, 8, 20480, "f32")
TSMR = StreamAFmaConfig(128, 1, 8, 8, 4, splits=13, row_tiles=1, min_blocks=4)
RESULTS = Path("benchmarks/results/h200-versus-cublas.json")


def candidate(config: KernelConfig = TSMR, problem: Problem = R, limits: DeviceLimits = H200) -> Candidate:
    return Candidate(family_named(config.family), config, problem, limits, Guidelines())


def gemm() -> GemmConfig:
    config = parse_config("gemm:block=128x128x16,threads=16x16,threads_a=16x16,threads_b=16x16,vector=4,read=nc")
    assert isinstance(config, GemmConfig)
    return config


def us(one: Candidate) -> float:
    (found,) = candidate_times_us([one])
    return float(found)


LAUNCH_US = us(candidate(replace(TSMR, splits=1), Problem(1, 1, 1, "f32")))


def test_a_full_launch_runs_at_the_bandwidth() -> None:
    floor_us = data_sheet(H200).memory_us(R)
    assert floor_us < us(candidate()) - LAUNCH_US < 1.1 * floor_us
    slow = replace(H200, dram_gbytes_per_s=H200.dram_gbytes_per_s / 4)
    assert us(candidate(limits=slow)) > 3 * us(candidate())


def test_few_bytes_in_flight_cost_time() -> None:
    assert us(candidate(replace(TSMR, prefetch=1, stages=1))) > 1.3 * us(candidate())


def test_idle_multiprocessors_cost_time() -> None:
    """The operations of one tile of X^T X take one multiprocessor 132 times as long as all of them."""
    problem = Problem(100, 100, 10**6, "f32", "tn")
    one = candidate(gemm(), problem)
    assert one.launch.blocks(problem.m, problem.n) == 1
    flops_per_us = dict(data_sheet(H200).gflops)["f32"] * 1e3 / 132
    assert 1 < us(one) * flops_per_us / (problem.flops * 1.28**2) < 1.1  # tiles of 128 x 128
    wide = replace(problem, m=1280, n=1280)
    assert us(candidate(gemm(), wide)) < 1.1 * us(one)  # 100 tiles, a multiprocessor each


def test_a_last_wave_takes_as_long_as_a_whole_one() -> None:
    problem = Problem(128 * 264, 128, 4096, "f32")  # two tiles a multiprocessor, both resident
    assert us(candidate(gemm(), replace(problem, m=128 * 265))) > 1.3 * us(candidate(gemm(), problem))


def test_sums_of_splits_cost_time() -> None:
    small = Problem(128, 8, 20480, "f32")
    alone, few, many = (us(candidate(replace(TSMR, splits=splits), small)) for splits in (1, 2, 48))
    assert many < few < alone  # the kernel is too slow with few blocks
    flat = Problem(20480, 8, 512, "f32")
    assert us(candidate(replace(TSMR, splits=48), flat)) > 1.2 * us(candidate(replace(TSMR, splits=4), flat))


def test_tensor_cores_have_their_own_rate() -> None:
    problem = Problem(64, 64, 10**7, "bf16", "tn")
    config = first_choices([family_named("inner_mma16")], problem, H200, candidate_times_us)[0]
    assert us(candidate(config, problem)) < 1.5 * LAUNCH_US + data_sheet(H200).memory_us(problem) * 1.1


def test_a_kernel_that_does_not_fit_takes_for_ever() -> None:
    assert us(candidate(replace(TSMR, threads=2048))) == math.inf


def test_candidates_of_several_problems_and_devices_are_predicted_at_once() -> None:
    every = [candidate(), candidate(problem=replace(R, m=64)), candidate(limits=PROFILES["a100"]), candidate()]
    assert candidate_times_us(every).tolist() == [us(one) for one in every]
    assert candidate_times_us([]).shape == (0,)


def test_winners_took_about_as_long_as_predicted() -> None:
    """The winners were measured on an H200."""
    rows = json.loads(RESULTS.read_text())["rows"]
    winners = []
    for row in rows:
        config = parse_config(row["configuration"])
        assert config is not None
        winners.append(candidate(config, Problem(row["m"], row["n"], row["k"], row["dtype"], row["op"])))
    ratios = np.sort(candidate_times_us(winners) / [row["ours_us"] for row in rows])
    assert 0.65 < ratios[0] < ratios[-1] < 2.5
    assert 0.75 < ratios[len(ratios) // 100] < ratios[-len(ratios) // 100] < 1.35
