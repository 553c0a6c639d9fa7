"""One kernel for every launch: its text has no number of splits or of tiles of rows, and it is right with any."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import compiled
from tsm2_tune.generator.config import KernelConfig, Launch
from tsm2_tune.generator.dtypes import DTYPES
from tsm2_tune.generator.families import FAMILIES
from tsm2_tune.generator.families.gemv import GemvConfig
from tsm2_tune.generator.families.inner import InnerFmaConfig
from tsm2_tune.generator.families.row_lanes import RowLanesSharedBConfig
from tsm2_tune.generator.families.staged import StagedDmmaConfig, StagedSymmetricFmaConfig
from tsm2_tune.generator.families.staged_wgmma import StagedWgmmaConfig
from tsm2_tune.generator.families.stream_a import StreamAFmaConfig, StreamAMma16Config
from tsm2_tune.generator.probes import launch_problems
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.tuner.compile.compiler import Toolchain
from tsm2_tune.tuner.device.cuda_kernel import ParameterLayout
from tsm2_tune.tuner.results.trial import Outcome
from tsm2_tune.tuner.verify.bound_kernel import Entry
from tsm2_tune.tuner.verify.winner_calls import EMULATED, calls_for
from tsm2_tune.tuner.worker.client import Worker
from tsm2_tune.tuner.worker.protocol import FullVerification, Run

pytestmark = pytest.mark.slow

TSMR = StreamAFmaConfig(64, 1, 2, 8, 4, splits=3, row_tiles=1, min_blocks=1)
TSMT = InnerFmaConfig(128, 32, 32, 8, 8, step=4, stages=2, splits=16, min_blocks=1)
STAGED = StagedDmmaConfig(
    128, 128, 32, 32, 16, 3, 1, splits=20, min_blocks=1, strips=1, octets=2, fragment_prefetch=0
)
SHAPES = ((4096, 16, 4096), (16, 16, 4096), (4096, 16, 16), (4096, 1, 4096), (8, 8, 8))  # each family supports one
CONFIGURATIONS = 4  # for each family and problem
LAUNCHED = [name for name, family in FAMILIES.items() if family.config_type.launch_tunables()]


def problems_of(name: str) -> Iterator[Problem]:
    """One of each dtype and op that the family supports."""
    for dtype, op in product(DTYPES, ("nn", "tn", "tx", "ttt")):
        batch = 2 if FAMILIES[name].is_batched else 1
        every = (Problem(m, n, k, dtype, op, batch) for m, n, k in SHAPES if m == n or op != "tx")
        yield from [one for one in every if FAMILIES[name].supports(one)][:1]


def otherwise_launched(config: KernelConfig) -> KernelConfig:
    """The same kernel with another value of every tunable of the launch that it may have others of."""
    names = [name for name in config.launch_tunables() if name != "splits" or config.has_splits]
    return replace(config, **{name: int(config.tunables[name]) + 3 for name in names})


@pytest.mark.parametrize("name", LAUNCHED)
def test_configurations_that_differ_only_in_the_launch_have_one_text(name: str) -> None:
    every = list(FAMILIES[name].configurations())
    problems = list(problems_of(name))
    assert problems
    for problem in problems:
        texts = dict[str, str]()
        for config in random.Random(name).sample(every, CONFIGURATIONS):
            source, other = render(problem, config), render(problem, otherwise_launched(config))
            assert source.text == other.text
            own, others = (replace(one.launch, splits=2, rows_per_block=1) for one in (source, other))
            assert own == others
            assert (source.launch.splits > 1) == (other.launch.splits > 1)
            assert texts.setdefault(config.kernel_text, source.text) == source.text
        assert len(set(texts.values())) == len(texts), "two kernels have one text"


def test_a_kernel_without_a_split_is_another() -> None:
    problem = Problem(512, 16, 96, "f32", "nn")
    assert TSMR.kernel_text == "stream_a_fma:threads=64,columns=2,prefetch=8,stages=4,splits=*,row_tiles=*"
    assert replace(TSMR, splits=1).kernel_text == "stream_a_fma:threads=64,columns=2,prefetch=8,stages=4,row_tiles=*"
    assert render(problem, TSMR).text != render(problem, replace(TSMR, splits=1)).text
    launch = Launch(32, 8, 0, columns_per_block=4, splits=70)
    one, many = launch.with_splits(1), launch.with_splits(65)
    assert (one.grid(9, 5), one.partial_elements(9, 5), one.counters(9, 5)) == ((4, 1), 4 * 32, 4)
    assert many == replace(launch, splits=65)
    assert many.groups == 5


@pytest.mark.parametrize("config", [TSMR, TSMT, STAGED], ids=lambda config: config.family)
def test_launches_are_one_few_more_than_at_once_and_the_configurations(config: KernelConfig) -> None:
    problem = Problem(512, 16, 96, "f64", "nn")
    launch = render(problem, config).launch
    tried = launch_problems(config, problem, most_products=1e12)
    many = 17 if launch.persistent else launch.flat_splits + 1
    assert {splits for splits, _ in tried} == {1, 2, 3, many, launch.splits}
    assert {splits for splits, _ in launch_problems(config, problem, most_products=1e6)} >= {1, 2, 3}
    assert not launch_problems(replace(TSMR, splits=1), problem, most_products=1e12)


RIGHT = (
    (TSMR, "f32", "nn"),
    (TSMT, "f32", "tn"),
    (STAGED, "f64", "tn"),
    (GemvConfig(128, 32, 2, 4, 2, 5), "f32", "tn"),
    (StagedSymmetricFmaConfig(128, 32, 16, 16, 3, 1, 40, 1, 4, 1), "f32", "tx"),
    (StreamAMma16Config(128, 4, 8, 32, 2, 3, 1, 1), "bf16", "nn"),
    (RowLanesSharedBConfig(128, 16, 32, 4, 2, 1, 2, 4, 8, 1), "f32", "ttt"),
    (StagedWgmmaConfig(128, 64, 32, 32, 3, 20), "bf16", "tn"),
)


@pytest.mark.slow
@pytest.mark.parametrize(("config", "dtype", "op"), RIGHT, ids=lambda one: getattr(one, "family", one))
def test_a_kernel_is_right_with_other_splits(
    worker: Worker, quick: Toolchain, config: KernelConfig, dtype: str, op: str
) -> None:
    problem = Problem(16 if op == "tx" else 512, 16, 96, dtype, op)
    source = render(problem, config)
    binary = compiled(source.text, source.kernel, quick, source.defines)
    calls = [call for call in calls_for(problem, config, EMULATED, problem.index_bits) if call.splits]
    entry = Entry(binary.code, source.kernel, source.launch)
    run = Run("with other splits", entry, problem.index_bits, tuple(calls))
    result = worker.verify_in_full(FullVerification(problem, (run,), seed=5))
    assert result.outcome is Outcome.OK, result.detail


STRUCTURE = np.array([(7, 9)], [("address", np.uint64), ("count", np.int32)])[0]
NUMBERS = (
    np.int32(-1), np.int64(-(2**40)), np.uint64(2**64 - 1), np.float16(8), np.float32("inf"), np.float64(0.1),
    np.complex64(3 + 4j), np.complex128(6 + 7j), STRUCTURE,
)  # fmt: skip


@given(st.lists(st.sampled_from(NUMBERS), min_size=1))
def test_each_parameter_lies_at_a_multiple_of_its_size(values: list[Any]) -> None:
    """A structure lies at a multiple of 8."""
    layout, at = ParameterLayout(tuple(np.zeros(1, one.dtype)[0] for one in values)), 0
    packed = layout.packed(tuple(values))
    for value in values:
        at += -at % (8 if value is STRUCTURE else value.nbytes)
        assert packed[at : at + value.nbytes] == value.tobytes()
        at += value.nbytes
    assert len(packed) == layout.size_bytes == at
