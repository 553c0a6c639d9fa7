"""The search space: every configuration is kept, or dropped by exactly one rule, each of which has a reason."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import asdict, replace
from functools import cache
from itertools import islice, product
from pathlib import Path
from typing import Any

import pytest

from tests.command import run
from tests.spelling import spelt
from tsm2_tune.errors import InputError
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.device.tensor_cores import HAS_F64_TENSOR_CORES, has_f64_tensor_cores
from tsm2_tune.generator.dtypes import FMA_DTYPES
from tsm2_tune.generator.families import FAMILIES, family_named
from tsm2_tune.generator.families.gemm import GemmConfig
from tsm2_tune.generator.families.gemv import DECOMPOSITIONS, GemvConfig, step
from tsm2_tune.generator.families.published import Tsm2Config
from tsm2_tune.generator.families.stream_a import StreamADmmaConfig, StreamAFmaConfig
from tsm2_tune.generator.probes import edge_problems
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.generator.space.guidelines import Guidelines, parse_thresholds
from tsm2_tune.generator.space.space import has_configurations, looked_at, pruned, rules_of, search_space
from tsm2_tune.generator.space.tunables import declared

pytestmark = pytest.mark.slow

H200 = PROFILES["h200"]
R = Problem(20480, 16, 20480, "f32")
SQUARE = Problem(4096, 4096, 4096, "f32")
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
    ("text", "device"),
    [(R.text, "s2050"), (R.text, "a100"), ("1x1x1:f32", "h200"), ("20480x16x20480:f64:ttt", "h200")],
)
def test_every_configuration_is_kept_or_dropped_by_a_rule(text: str, device: str) -> None:
    problem = Problem.parse(text)
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
    config = next(family_named("stream_a_fma").configurations())
    wide = GemvConfig(128, 256, 1, 1, 1, 1)  # more threads for a row than a block has
    for name, one, has in (
        ("stream_a_fma", config, True),
        ("stream_a_fma", replace(config, evict_first=0), True),
        ("stream_a_fma", replace(config, evict_first=2), False),
        ("stream_a_fma", replace(config, columns=5), False),
        ("inner_fma", config, False),
        ("gemv", wide, False),
        ("gemv", replace(wide, threads=256), True),
    ):
        assert family_named(name).has(one, R) == has, (name, one.text)


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
    """Slow f64 units, and those of 10.0, multiply f32 and c64 no faster than FMA."""
    config = StreamADmmaConfig(128, 2, 16, 16, 2, splits=4, row_tiles=1, min_blocks=1)
    f64_alone = {"f64", "c128"}
    for capability, names in {(8, 0): set(), (9, 0): set(FMA_DTYPES), (10, 0): f64_alone, (12, 0): f64_alone}.items():
        limits = replace(H200, compute_capability=capability)
        assert {name for name in FMA_DTYPES if has_f64_tensor_cores(limits, Problem(64, 64, 64, name))} == names
        problem = replace(R, dtype_name="f64")
        candidate = Candidate(family_named("stream_a_dmma"), config, problem, limits, Guidelines())
        assert HAS_F64_TENSOR_CORES.keeps(candidate) == ("f64" in names)


def test_tunables_of_another_configuration_are_refused() -> None:
    for tunables, error in (
        ({"version": "v0"}, "expected the tunables"),
        ({"version": "v0", "threads": "32", "columns": 1, "prefetch": 1}, "is no int"),
    ):
        with pytest.raises(InputError, match=error):
            Tsm2Config.from_tunables(tunables)


def test_only_gram_matrices_have_their_families_and_square_probes() -> None:
    problem = Problem(32, 32, 10**6, "f64", "tx")
    for name in ("staged_symmetric_fma", "staged_symmetric_dmma"):
        assert [family_named(name).supports(replace(problem, op=op)) for op in ("tx", "tn")] == [True, False]
    config = spelt("inner_fma:threads=128,block=8x8,thread=8x8x4,stages=1,splits=264")
    sizes, general = (
        {(probe.m, probe.n) for probe in edge_problems(config, replace(problem, op=op))} for op in ("tx", "tn")
    )
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


# Rules: each drops its counter-example

LINES = Path(__file__).with_name("counter_examples.txt").read_text().splitlines()
EXAMPLES = [line.split() for line in LINES if not line.startswith("#")]


def test_every_rule_has_a_counter_example() -> None:
    """Rules of several families may share a name: those that differ differ in their reason."""
    rules = {(rule.name, rule.because) for family in FAMILIES.values() for rule in rules_of(family)}
    families = [(example[0], family_named(spelt(example[1]).family)) for example in EXAMPLES]
    shown = {(one.name, one.because) for name, family in families for one in rules_of(family) if one.name == name}
    assert shown == rules


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: " of ".join(example[:2]))
def test_a_rule_drops_its_counter_example(example: list[str]) -> None:
    rule, spelling, problem, card, thresholds = [*example, *["-", ""][len(example) - 3 :]]
    config, guidelines = spelt(spelling), Guidelines().moved(parse_thresholds(thresholds))
    limits, family = PROFILES["h200" if card == "-" else card], family_named(config.family)
    candidate = Candidate(family, config, Problem.parse(problem), limits, guidelines)
    dropped = [one.name for one in rules_of(family) if not one.keeps(candidate)]
    assert (rule.removeprefix("+") in dropped) == (rule[0] != "+")


# Guidelines, which the user sets

NONE = {"min_threads_per_sm": 0, "min_blocks_per_sm": 0, "min_reuse": 0, "min_line_bytes": 0}


@pytest.mark.parametrize(
    ("text", "thresholds"),
    [
        ("", {}),
        ("none", NONE),
        ("none, min-reuse=2.5", NONE | {"min_reuse": 2.5}),
        ("min-threads-per-sm=512, min_reuse=2.5,", {"min_threads_per_sm": 512, "min_reuse": 2.5}),
        (Guidelines(min_reuse=2.5).text, asdict(Guidelines(min_reuse=2.5))),  # as it is printed
    ],
)
def test_thresholds_are_spelt_by_name(text: str, thresholds: dict[str, float]) -> None:
    assert parse_thresholds(text) == thresholds


@pytest.mark.parametrize(
    ("family", "name", "values"),
    [
        ("tsm2", "min-threads-per-sm", (0, 512, 10**30)),
        ("tsm2", "min-blocks-per-sm", (0, 4, 10**30)),
        ("tsm2", "min-reuse", (0, 2.5, 1e300)),
        ("gemm", "min-threads-per-sm", (0, 512, 10**30)),
        ("gemm", "min-reuse", (0, 2.5, 3, 4, 1e300)),
        ("gemm", "min-line-bytes", (0, 64, 10**30)),
    ],
)
def test_a_higher_threshold_keeps_fewer(family: str, name: str, values: tuple[float, ...]) -> None:
    problem, counts = SQUARE if family == "gemm" else R, []
    for value in values:
        guidelines = parse_thresholds(f"{name}={value}")
        counts.append(len(search_space(problem, H200, guidelines=guidelines, families=[family]).kept))
    assert counts == sorted(set(counts), reverse=True)


@pytest.mark.usefixtures("no_driver")
def test_one_threshold_moves_and_the_others_stay_the_familys_own() -> None:
    own, fewer, more = (
        json.loads(run("space", "--device", "h200", "--family", "gemm", *given, "--json").output)[0]
        for given in ((), ("--guidelines", "min-threads-per-sm=1024"), ("--guidelines", "min-reuse=3"))
    )
    thresholds = own["guidelines"]["gemm"]
    assert thresholds != asdict(Guidelines())
    assert fewer["guidelines"]["gemm"] == thresholds | {"min_threads_per_sm": 1024}
    assert more["guidelines"]["gemm"] == thresholds | {"min_reuse": 3}
    assert fewer["kept"] < own["kept"] < more["kept"]
    assert fewer["total"] == own["total"] == more["total"]


# Tilings, from which times are predicted

L = "10000000x8x8:f32"


@pytest.mark.parametrize(
    ("config", "problem", "expected"),
    [
        ("stream_a_fma:threads=64,columns=2,prefetch=8,stages=4,splits=13,row_tiles=2,min_blocks=4",
         "20480x2x20480:f32", {"tile_m": 256, "tile_n": 2, "k_step": 8, "k_padding": 8, "c_vector_bytes": 16}),
        ("resident_b_fma:threads=128,vector_bytes=8,columns=8,prefetch=8,row_tiles=4", L,
         {"tile_m": 256, "tile_n": 8, "k_step": 64, "vector_bytes": 8, "k_padding": 8, "c_vector_bytes": 8}),
        ("resident_b_fma_held:threads=128,vector_bytes=4,depth=8,columns=8,across=8", L,
         {"k_per_pass": 8, "without_vectors": 1.6, "n_padding": 8, "c_vector_bytes": 4}),
        ("tsm2:version=v3,threads=128,columns=4,prefetch=8", L, {"tile_m": 128, "tile_n": 4, "k_step": 128}),
        ("ism2:optimisation=1,threads=128,columns=4,prefetch=8,row_tiles=2", L, {"tile_m": 128, "k_step": 128}),
        # A lane loads and stores vectors up to its part of a row: of C the 2 columns that each of 4 lanes stores.
        ("row_lanes_register_b:threads=128,vector_bytes=8,lanes=4,vectors=2,columns=8,rows=4,row_tiles=2,min_blocks=4",
         "1000000x8x16:f32:ttt", {"vector_bytes": 8, "k_of_vectors": 16, "c_vector_bytes": 8}),
        # Rings copy lines that are no whole vectors element by element.
        ("staged_f32_dmma:threads=128,ring_threads=128,block=128x64x32,stages=2,copy=ca,splits=264,min_blocks=2,"
         "warp=64x32", "20480x64x20480:f32", {"tile_m": 128, "tile_n": 64, "k_step": 32, "without_vectors": 1.3}),
        # Row tiles in shared memory have all columns and even lines; no sum is divided; a lane is 8 columns wide.
        ("resident_b_fma_ring:threads=128,rows=4,columns=8,stages=2,smem_kb=55,splits=528", "1000000x42x5:f32:ttt",
         {"tile_m": 128, "tile_n": 0, "without_vectors": 1.0, "k_step": 0, "n_padding": 8}),
    ],
)  # fmt: skip
def test_a_family_says_how_its_kernels_divide_their_work(config: str, problem: str, expected: dict[str, Any]) -> None:
    kernel = spelt(config)
    tiling = FAMILIES[kernel.family].tiling(kernel, Problem.parse(problem), 4)
    assert {name: getattr(tiling, name) for name in expected} == expected
    assert tiling.resident == 4


@pytest.mark.parametrize("dtype", ["f32", "bf16", "c128"])
@pytest.mark.parametrize("op", ["nn", "tn", "ttt"])
@pytest.mark.parametrize(("m", "k"), [(10**7, 32), (10**4, 3), (100, 1000)])
def test_decompositions_of_gemv_have_no_lanes_or_loads_past_a_row(m: int, k: int, op: str, dtype: str) -> None:
    problem = Problem(m, 1, k, dtype, op)
    for name in DECOMPOSITIONS:
        for config in family_named("gemv").corner(name, problem, H200):  # type: ignore[attr-defined]
            once = step(config, problem)
            assert config.decomposition == name
            assert config.lanes == 1 or once < 2 * k, config.text
            assert config.prefetch == 1 or config.prefetch // 2 * once < k, config.text
