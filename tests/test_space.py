"""The search space: every configuration is kept, or dropped by exactly one rule."""

import random
from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import islice, product
from typing import Any

import pytest

from tsm2_tune.errors import InputError
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.device.tensor_cores import HAS_F64_TENSOR_CORES, has_f64_tensor_cores
from tsm2_tune.generator.families import FAMILIES, family_named
from tsm2_tune.generator.families.gemm import GemmConfig
from tsm2_tune.generator.families.gemv import GemvConfig
from tsm2_tune.generator.families.inner import InnerFmaConfig
from tsm2_tune.generator.families.published import Tsm2Config
from tsm2_tune.generator.families.stream_a import StreamADmmaConfig, StreamAFmaConfig
from tsm2_tune.generator.probes import edge_problems
from tsm2_tune.generator.problem import FMA_DTYPES, Problem
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.generator.space.guidelines import Guidelines
from tsm2_tune.generator.space.space import has_configurations, looked_at, pruned, rules_of, search_space
from tsm2_tune.generator.space.tunables import declared

pytestmark = pytest.mark.slow

H200 = PROFILES["h200"]
R = Problem(20480, 16, 20480, "f32")
R64 = Problem(20480, 16, 20480, "f64")
ROW_MAJOR = Problem(20480, 16, 20480, "f64", "ttt")
STENCIL = GemmConfig(96, 96, 16, 16, 16, 32, 8, 8, 32, vector=1, read="nc")
SKINNY, TALL = Problem(2048, 4, 512, "f32"), Problem(4, 4, 2048, "f64", "tn")
IN_GRIDS = [one for one in FAMILIES.values() if one.every_grid]
SHAPES = ((20480, 16, 20480), (1000, 7, 300), (16, 16, 100_000), (10**6, 16, 16), (3000, 1, 5000), (10**5, 7, 7))
BATCHES = ((8, 8, 8), (3, 3, 3), (10, 7, 100), (16, 16, 16))


def problems_of(family: Any) -> list[Problem]:
    """Some that it supports."""
    shapes, batch = (BATCHES, 100_000) if family.is_batched else (SHAPES, 1)
    every = [
        Problem(*shape, dtype, op, batch)
        for shape, dtype, op in product(shapes, family.dtypes, ("nn", "ttt", "tn", "tx"))
        if op != "tx" or shape[0] == shape[1]
    ]
    return [one for one in every if family.supports(one)]


@cache
def configurations_of(family: str) -> int:
    """Return the number of the family's configurations before any rule."""
    return sum(1 for _ in family_named(family).configurations())


@pytest.mark.parametrize(
    ("problem", "device"),
    [
        *((R, device) for device in ("s2050", "v100", "a100", "h200")),
        *((problem, "h200") for problem in (Problem(10**7, 8, 8, "f64"), Problem(1, 1, 1, "f32"), ROW_MAJOR)),
    ],
    ids=lambda one: getattr(one, "text", one),
)
def test_nothing_vanishes(problem: Problem, device: str) -> None:
    space = search_space(problem, PROFILES[device])
    able = [family for family in FAMILIES.values() if family.supports(problem) and not family.only_by_name]
    every = sum(configurations_of(family.name) for family in able)
    assert space.families == tuple(family.name for family in able)
    assert len(space.kept) + sum(count for _, count in space.dropped) == space.total == every


@pytest.mark.parametrize("family", IN_GRIDS, ids=lambda family: family.name)
def test_rules_look_at_no_tunables_but_those_that_they_name(family: Any) -> None:
    chance, every = random.Random(family.name), list(family.configurations())
    for problem in chance.choices(problems_of(family), k=2):
        for rule in rules_of(family):
            tunables, alike = looked_at(rule, family), 0
            if tunables is None:
                continue
            for config in chance.sample(every, 200):
                donor = chance.choice(every).tunables
                other = replace(config, **{name: donor[name] for name in donor if name not in tunables})
                if family.has(other, problem):
                    alike += 1
                    one, two = (Candidate(family, who, problem, H200, Guidelines()) for who in (config, other))
                    assert rule.keeps(one) == rule.keeps(two), (rule.name, config.text, other.text)
            assert tunables is None or alike > 10


@pytest.mark.parametrize("name", ["ism2", "resident_b_fma", "staged_symmetric_fma", "stream_a_mma16_ring", "tsm2"])
def test_the_first_rule_that_objects_drops_a_configuration(name: str) -> None:
    family = family_named(name)
    for problem in random.Random(name).sample(problems_of(family), 2):
        rules, wanted = rules_of(family), family.guidelines(problem, H200)
        kept, dropped = pruned(family, problem, H200, wanted, rules)
        candidates = [Candidate(family, one, problem, H200, wanted) for one in family.configurations()]
        broken = [next((rule.name for rule in rules if not rule.keeps(one)), "") for one in candidates]
        assert [one for one, why in zip(candidates, broken, strict=True) if not why] == list(kept)
        assert Counter(filter(None, broken)) == +dropped


def test_a_family_has_what_its_grids_hold_and_what_is_made_of_it_later() -> None:
    family = family_named("stream_a_fma")
    config = next(family.configurations())
    assert family.has(config, R)
    assert family.has(replace(config, evict_first=0), R)
    assert not family.has(replace(config, evict_first=2), R)
    assert not family.has(replace(config, columns=5), R)
    assert not family_named("inner_fma").has(config, R)
    of_tf32 = next(family_named("inner_tf32").configurations())
    assert family_named("inner_tf32").has(of_tf32, R)
    assert not family_named("inner_mma16").has(of_tf32, R)
    wide = GemvConfig(128, 256, 1, 1, 1, 1)  # more threads for a row than a block has
    assert not family_named("gemv").has(wide, R)
    assert family_named("gemv").has(replace(wide, threads=256), R)


def test_a_configuration_is_read_in_any_order_and_without_what_is_usual() -> None:
    config = StreamAFmaConfig(128, 1, 8, 8, 4, 1, 1, 1)
    text = "stream_a_fma:threads=128,columns=8,prefetch=8,stages=4"
    assert config.text == text
    more = f"stream_a_fma:evict_first=1,vectors=1,{text.removeprefix('stream_a_fma:')},splits=1"
    assert StreamAFmaConfig.parse(more) == config
    assert GemmConfig.parse(STENCIL.text) == STENCIL
    wrong = [
        text.removesuffix(",stages=4"),
        *(f"{text},{one}" for one in ("stages=4", "tiles=4", "")),
        "stream_a_fma:",
    ]
    changes = (("=8", "=08"), ("=8", "="), ("stream_a_fma", "resident_b_fma"), (":", ","))
    for one in (*wrong, *(text.replace(*change) for change in changes)):
        assert StreamAFmaConfig.parse(one) is None
    blocks = "block=96x96 block=96x96x16x2 block=96xx16 block=96x96x16,m_blk=96 m_blk=96,n_blk=96,k_blk=16"
    for one in blocks.split():
        assert GemmConfig.parse(STENCIL.text.replace("block=96x96x16", one)) is None


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_each_configuration_is_enumerated_once_and_reads_back(family: Any) -> None:
    configs = list(islice(family.configurations(), 20_000))  # gemm has millions
    assert len(set(configs)) == len(configs)
    some = configs[::23]
    assert [family.config_type.from_tunables(config.tunables) for config in some] == some
    assert [family.config_type.parse(config.text) for config in some] == some
    assert list(configs[0].tunables) == [one.name for one in declared(family.config_type)]


def test_f64_tensor_cores_compute_where_they_are_fast() -> None:
    """The host stands in for them; slow f64 units, and those of 10.0, multiply f32 and c64 no faster than FMA."""
    config = StreamADmmaConfig(128, 2, 16, 16, 2, splits=4, row_tiles=1, min_blocks=1)
    families = [name for name, family in FAMILIES.items() if HAS_F64_TENSOR_CORES in family.rules]
    all_types, f64_alone = {"f32", "f64", "c64", "c128"}, {"f64", "c128"}
    for capability, names in (
        ((8, 0), set()),
        ((9, 0), all_types),
        ((10, 0), f64_alone),
        ((12, 0), f64_alone),
        ((0, 0), all_types),
    ):
        limits = replace(H200, compute_capability=capability)
        assert {name for name in FMA_DTYPES if has_f64_tensor_cores(limits, Problem(64, 64, 64, name))} == names
        candidate = Candidate(family_named("stream_a_dmma"), config, R64, limits, Guidelines())
        assert HAS_F64_TENSOR_CORES.keeps(candidate) == ("f64" in names)
    for capability, dtype in product(((9, 0), (12, 0)), ("f32", "c64")):
        limits = replace(H200, compute_capability=capability)
        space = search_space(Problem(20480, 64, 20480, dtype), limits, families=families)
        assert bool(space.kept) is (capability == (9, 0))


def test_wrong_tunables_are_refused_and_only_named_families_searched() -> None:
    with pytest.raises(InputError, match="expected the tunables"):
        Tsm2Config.from_tunables({"version": "v0"})
    with pytest.raises(InputError, match="is no int"):
        Tsm2Config.from_tunables({"version": "v0", "threads": "32", "columns": 1, "prefetch": 1})
    space = search_space(R, H200, families=["ism2"])
    assert space.families == ("ism2",)
    assert {candidate.config.family for candidate in space.kept} == {"ism2"}


def test_gram_matrices_have_families_of_their_own() -> None:
    for name in ("staged_symmetric_fma", "staged_symmetric_dmma"):
        able = [family_named(name).supports(Problem(32, 32, 10**6, "f64", op)) for op in ("tx", "tn")]
        assert able == [True, False]
    problem = Problem(8, 8, 10**6, "f32", "tx")
    config = InnerFmaConfig(128, 8, 8, 8, 8, 4, 1, splits=264, min_blocks=1)
    sizes = {(probe.m, probe.n) for probe in edge_problems(config, problem)}
    general = {(probe.m, probe.n) for probe in edge_problems(config, replace(problem, op="tn"))}
    assert sizes == {(size, size) for shape in general for size in shape}


@pytest.mark.parametrize(
    ("problem", "families"),
    [*product((SKINNY, TALL), (("tsm2",), ("gemm",), ("stream_a_fma", "inner_fma"))), (TALL, ())],
)
def test_whether_there_is_a_configuration_is_what_the_space_says(problem: Problem, families: tuple[str, ...]) -> None:
    least = "min_threads_per_sm"
    kept = search_space(problem, H200, guidelines={least: 0}, families=families).kept
    for threads in (0, 256, 10**6):
        expected = any(one.occupancy.threads_per_sm >= threads for one in kept)
        assert has_configurations(problem, H200, guidelines={least: threads}, families=families) == expected
