"""The expected time of a launch, by planning alone."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.device.roofline import Ceilings, data_sheet
from tsm2_tune.generator.families import family_named, parse_config
from tsm2_tune.generator.families.gemm import GemmConfig
from tsm2_tune.generator.families.stream_a import StreamAFmaConfig
from tsm2_tune.generator.predict.expected_time import START_US, expected_us, padded_flops, sums_us, waves_us
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.generator.space.guidelines import Guidelines
from tsm2_tune.generator.space.seeds import first_choices

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


def test_a_full_launch_runs_at_the_bandwidth() -> None:
    one = candidate()
    floor_us = data_sheet(H200).memory_us(R)
    assert START_US + floor_us < expected_us(one) < START_US + 1.1 * floor_us
    halved = Ceilings(H200.dram_gbytes_per_s / 2, H200.dram_gbytes_per_s / 2, data_sheet(H200).gflops)
    assert waves_us(one, halved) == pytest.approx(2 * waves_us(one, data_sheet(H200)))


def test_a_small_product_takes_what_starting_takes() -> None:
    problem = replace(R, m=128, k=64)
    one = candidate(replace(TSMR, splits=1), problem)
    assert START_US < expected_us(one) < START_US + 2


def test_few_bytes_on_their_way_cost_time() -> None:
    few = candidate(replace(TSMR, prefetch=1, stages=1))
    assert expected_us(few) > 1.4 * expected_us(candidate())


def test_idle_multiprocessors_cost_time() -> None:
    """One tile of X^T X: its operations take one multiprocessor's rate, 132 times as long as all of them."""
    problem = Problem(100, 100, 10**6, "f32", "tn")
    one = candidate(gemm(), problem)
    assert one.launch.blocks(problem.m, problem.n) == 1
    assert padded_flops(one) == pytest.approx(problem.flops * 1.28**2)
    a_multiprocessor = dict(data_sheet(H200).gflops)["f32"] * 1e3 / 132
    assert expected_us(one) == pytest.approx(START_US + padded_flops(one) / a_multiprocessor)
    wide = replace(problem, m=1280, n=1280)
    assert expected_us(candidate(gemm(), wide)) < 1.1 * expected_us(one)  # 100 tiles, a multiprocessor each


def test_a_last_wave_takes_as_long_as_a_whole_one() -> None:
    problem = Problem(128 * 264, 128, 4096, "f32")  # two tiles a multiprocessor, both resident
    whole = expected_us(candidate(gemm(), problem))
    one_more = expected_us(candidate(gemm(), replace(problem, m=128 * 265)))
    assert one_more == pytest.approx(1.5 * whole, rel=0.05)


def test_sums_of_splits_cost_time() -> None:
    assert sums_us(candidate(replace(TSMR, splits=1))) == 0
    few, many = (sums_us(candidate(replace(TSMR, splits=splits))) for splits in (2, 48))
    assert 0 < few < many
    in_groups = parse_config(
        "staged_fma:threads=128,ring_threads=128,block=64x64x32,stages=3,copy=ca,splits=396,thread=8x8x1"
    )
    assert in_groups is not None
    of_t = candidate(in_groups, Problem(64, 64, 10**6, "f32", "tn"))
    assert of_t.launch.groups
    assert sums_us(of_t) < 396 * 64 * 64 * 4 / (64 * H200.sm_clock_mhz)  # by one block, one after another


def test_tensor_cores_have_their_own_rate() -> None:
    problem = Problem(64, 64, 10**7, "bf16", "tn")
    config = first_choices([family_named("inner_mma16")], problem, H200)[0]
    assert expected_us(candidate(config, problem)) < 1.3 * START_US + data_sheet(H200).memory_us(problem) * 1.1


def test_a_kernel_that_does_not_fit_takes_for_ever() -> None:
    assert expected_us(candidate(replace(TSMR, threads=2048))) == math.inf


def test_winners_took_about_as_long_as_expected() -> None:
    """The winners were measured on an H200; the model's constants were not fitted to each of them."""
    ratios = []
    for row in json.loads(RESULTS.read_text())["rows"]:
        config = parse_config(row["configuration"])
        assert config is not None
        problem = Problem(row["m"], row["n"], row["k"], row["dtype"], row["op"])
        ratios.append(expected_us(candidate(config, problem)) / row["ours_us"])
    ratios.sort()
    assert ratios[0] > 0.4
    assert ratios[-1] < 2
    assert ratios[len(ratios) // 100] > 0.6
    assert ratios[-len(ratios) // 100] < 1.4
