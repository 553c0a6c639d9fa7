"""The search space: every configuration is kept, or dropped by exactly one rule."""

from dataclasses import replace
from typing import Any

import pytest

from tsm2_tune.errors import InputError
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.families import FAMILIES, family_named
from tsm2_tune.generator.families.ism2 import Ism2Config
from tsm2_tune.generator.families.tsm2 import Tsm2Config
from tsm2_tune.generator.families.tsmm import TsmmConfig
from tsm2_tune.generator.limits import DeviceLimits
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.profiles import PROFILES
from tsm2_tune.generator.rules import Guidelines
from tsm2_tune.generator.space import candidate_of, rules_of, search_space

H200 = PROFILES["h200"]
R = Problem(20480, 16, 20480, "f32")


@pytest.mark.parametrize("problem", [R, Problem(10**7, 8, 8, "f64"), Problem(1, 1, 1, "f32")], ids=str)
@pytest.mark.parametrize("device", PROFILES)
def test_nothing_vanishes(problem: Problem, device: str) -> None:
    space = search_space(problem, PROFILES[device])
    every = sum(1 for family in FAMILIES.values() for _ in family.configurations())
    assert len(space.kept) + sum(count for _, count in space.dropped) == space.total == every


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_each_configuration_is_enumerated_once_and_reads_back(family: Any) -> None:
    configs = list(family.configurations())
    assert len({config.text for config in configs}) == len(configs) == len(set(configs))
    assert [family.config_type.from_tunables(config.tunables) for config in configs] == configs
    assert list(configs[0].tunables) == [tunable.name for tunable in family.tunables]


# One counter-example for each rule: (configuration, problem, limits or guidelines that differ).
COUNTER_EXAMPLES: dict[str, tuple[KernelConfig, Problem, DeviceLimits, Guidelines]] = {
    "threads-per-block": (Tsm2Config("v3", 1024, 1, 1), R, replace(H200, threads_per_block=512), Guidelines()),
    "registers-per-thread": (Tsm2Config("v3", 32, 32, 32), Problem(20480, 32, 20480, "f64"), H200, Guidelines()),
    "shared-memory": (
        Tsm2Config("v2", 1024, 32, 1),
        Problem(20480, 32, 20480, "f64"),
        PROFILES["p100"],
        Guidelines(),
    ),
    "block-fits": (Tsm2Config("v3", 1024, 16, 32), R, H200, Guidelines()),
    "columns-within-n": (Tsm2Config("v3", 128, 24, 4), R, H200, Guidelines()),
    "prefetch-within-k": (Tsm2Config("v3", 128, 8, 16), Problem(10**7, 8, 8, "f32"), H200, Guidelines()),
    "threads-within-m": (Tsm2Config("v3", 128, 8, 4), Problem(64, 8, 64, "f32"), H200, Guidelines()),
    "rows-within-m": (TsmmConfig(64, 16, 1, 8, 4, 1), Problem(255, 8, 64, "f32"), H200, Guidelines()),
    "grid-fills-device": (Ism2Config(1, 128, 8, 4, 2), R, H200, Guidelines()),
    "min-threads-per-sm": (Tsm2Config("v3", 128, 16, 4), R, H200, Guidelines(min_threads_per_sm=2048)),
    "min-blocks-per-sm": (Tsm2Config("v3", 1024, 4, 4), R, H200, Guidelines(min_blocks_per_sm=4)),
    "min-reuse": (Tsm2Config("v3", 128, 2, 4), R, H200, Guidelines()),
}


def test_every_rule_has_a_counter_example() -> None:
    assert {rule.name for family in FAMILIES.values() for rule in rules_of(family)} == set(COUNTER_EXAMPLES)


@pytest.mark.parametrize("name", COUNTER_EXAMPLES)
def test_a_rule_drops_its_counter_example(name: str) -> None:
    config, problem, limits, guidelines = COUNTER_EXAMPLES[name]
    family = family_named(config.family)
    candidate = candidate_of(family, config, problem, limits, guidelines)
    dropping = [rule.name for rule in rules_of(family) if not rule.keeps(candidate)]
    assert name in dropping


def test_wrong_tunables_are_refused() -> None:
    with pytest.raises(InputError, match="expected the tunables"):
        Tsm2Config.from_tunables({"version": "v0"})
    with pytest.raises(InputError, match="is no int"):
        Tsm2Config.from_tunables({"version": "v0", "threads": "32", "columns": 1, "prefetch": 1})


def test_guidelines_are_the_users_to_set() -> None:
    assert Guidelines.parse("") == Guidelines()
    assert Guidelines.parse("min-threads-per-sm=512, min_reuse=2.5") == Guidelines(
        min_threads_per_sm=512, min_reuse=2.5
    )
    for text, complaint in (
        ("threads=1", "unknown guideline"),
        ("min-reuse=x", "expected a number"),
        ("min-reuse=-1", "at least 0"),
        ("min-blocks-per-sm=1.5", "expected a number"),
        ("min-reuse=nan", "at least 0"),
    ):
        with pytest.raises(InputError, match=complaint):
            Guidelines.parse(text)


def test_only_the_named_families_are_searched() -> None:
    space = search_space(R, H200, families=["ism2"])
    assert space.families == ("ism2",)
    assert {candidate.config.family for candidate in space.kept} == {"ism2"}


def test_index_width_covers_padded_operands() -> None:
    assert Problem(20480, 16, 20480, "f32").index_bits == 32
    assert Problem(46340, 1, 46340, "f32").index_bits == 64  # 46340**2 is just under 2**31
    assert Problem(10**8, 64, 1, "f32").index_bits == 64


@pytest.mark.parametrize(("m", "n", "k"), [(0, 1, 1), (1, -1, 1), (1, 1, 2**31)])
def test_impossible_problems_are_refused(m: int, n: int, k: int) -> None:
    with pytest.raises(InputError, match="is outside"):
        Problem(m, n, k, "f32")


def test_a_problem_reads_back() -> None:
    assert Problem.parse(R.text) == R
    with pytest.raises(InputError, match="MxNxK:DTYPE"):
        Problem.parse("8x8:f32")
    with pytest.raises(InputError, match="unknown dtype"):
        Problem.parse("8x8x8:f16")
