"""Tests of the order in which a search tries candidates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import cycle, product
from random import Random
from time import process_time
from typing import Any

import pytest

from tsm2_tune.errors import InputError
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.families import FAMILIES, family_named
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.columnar import places
from tsm2_tune.generator.space.guidelines import parse_thresholds
from tsm2_tune.generator.space.order import MOST_PREDICTED, first_and_rest, ordered
from tsm2_tune.generator.space.seeds import first_choices
from tsm2_tune.generator.space.space import SearchSpace, search_space
from tsm2_tune.tuner.packs.candidate_times import candidate_times_us

pytestmark = pytest.mark.slow

NONE = parse_thresholds("none")

H200 = PROFILES["h200"]
R = Problem(20480, 8, 20480, "f32")
CARDS = {**PROFILES, "sms128": replace(H200, sms=128, compute_capability=(8, 9))}

EVERY = [name for name, family in FAMILIES.items() if not family.only_by_name]


def choices(names: str | Iterable[str], problem: Problem | str, card: str = "h200") -> tuple[KernelConfig, ...]:
    """The first choices of these families for the problem."""
    problem = Problem.parse(problem) if isinstance(problem, str) else problem
    families = [names] if isinstance(names, str) else list(names)
    return first_choices(search_space(problem, CARDS[card], families=families), candidate_times_us)


OPS = ("nn", "ttt", "tn", "ntt", "cn", "jtt", "tx", "nxt", "cx", "jxt")
WIDTHS = (1, 2, 3, 4, 8, 12, 16, 24, 32, 48, 64)
SHAPES = (
    *((n, n, k) for n in WIDTHS for k in (10**4, 10**7)),
    *((m, n, 10**4) for m, n in ((16, 64), (64, 16), (8, 64), (48, 64))),
    *((m, n, 10**7) for m, n in ((1, 16), (16, 1), (4, 16), (8, 64), (64, 8), (16, 64), (64, 16), (32, 64), (7, 33))),
    *((m, n, k) for m, n in ((12, 20), (12, 40), (24, 40), (40, 20)) for k in (17, 10**7)),
    *((m, n, k) for n in WIDTHS for m, k in ((20480, 20480), (9973, 9973), (15360, 1920), (10**7, n), (10**4, n))),
    *((4096, 4096, 4096), (512, 512, 512), (300, 70, 17), (65, 129, 7), (4097, 100, 1), (8192, 8192, 32)),
    *((10**7, n, k) for n, k in ((64, 8), (8, 64), (16, 4), (4, 16), (64, 2), (2, 64))),
)


def problems(family: Any) -> Iterator[Problem]:
    """Yield a problem of each shape and op that the family computes; types take turns."""
    for (at_op, op), (at_shape, shape) in product(enumerate(OPS), enumerate(SHAPES)):
        found = []
        for dtype in family.dtypes:
            with suppress(InputError):  # a Gram matrix is square, only complex numbers are conjugated
                problem = Problem(*shape, dtype, op)
                if family.supports(problem):
                    found.append(problem)
        if found:
            yield found[(at_op + at_shape) % len(found)]


def a_quarter(family: Any) -> list[Problem]:
    """Return a quarter of the family's problems, drawn at random, the same ones each time."""
    found = list(problems(family))
    return Random(family.name).sample(found, -(-len(found) // 4))


def one_by_one(space: SearchSpace, times_us: dict[str, float], seed: int) -> list[str]:
    """The order of a search, of candidates each for itself, whose times by the model these are."""
    preferred = first_choices(space, candidate_times_us)
    within_us = MOST_PREDICTED * min(times_us.values())
    first = [one.text for one in preferred if times_us.get(one.text, within_us + 1) <= within_us]
    rest = [text for text in times_us if text not in set(first)]
    Random(seed).shuffle(rest)
    return [*first, *sorted(rest, key=times_us.__getitem__)]


@pytest.mark.parametrize(
    ("text", "card"),
    [("4096x4096x4096:f32", "h200"), ("4096x4096x4096:f32", "s2050"), ("64x64x1000000:f64:tn", "v100"),
     ("300x70x17:c64:tt", "h200"), (R.text, "h200")],
)  # fmt: skip
def test_tables_are_ordered_as_candidates_each_for_itself(text: str, card: str) -> None:
    space = search_space(Problem.parse(text), PROFILES[card])
    times_us = {one.config.text: float(candidate_times_us([one])[0]) for one in space.kept}
    for seed in (0, 5):
        found = [one.config.text for one in ordered(space, seed, candidate_times_us)]
        assert found == one_by_one(space, times_us, seed)


def test_a_space_of_nearly_a_million_is_ordered_in_a_few_seconds() -> None:
    space = search_space(Problem(4096, 4096, 4096, "f32"), H200, guidelines=NONE, families=["gemm"])
    start = process_time()
    found = ordered(space, 0, candidate_times_us)
    assert process_time() - start < 10
    assert len(found) == len(space.kept) > 900_000
    times_us = candidate_times_us(found[20::50_000]).tolist()
    assert times_us == sorted(times_us)
    preferred = choices("gemm", space.problem)
    assert tuple(one.config for one in found[: len(preferred)]) == preferred != ()


@pytest.mark.parametrize("m", [10240, 20480, 30720])
def test_every_multiprocessor_has_as_many_blocks(m: int) -> None:
    problem = replace(R, m=m, k=m)
    launch = family_named("stream_a_fma").launch(choices("stream_a_fma", problem)[0], problem)
    blocks = launch.blocks(problem.m, problem.n)
    assert blocks > 0.93 * -(-blocks // H200.sms) * H200.sms


@pytest.mark.parametrize("op", ["tn", "tx"])
def test_a_family_of_one_tile_waits_whatever_it_prefers(op: str) -> None:
    """X^T X of 100 columns: one tile would leave 131 multiprocessors idle."""
    problem = Problem(100, 100, 10**6, "f32", op)
    space = search_space(problem, H200)
    assert choices("gemm", problem)
    found = ordered(space, 0, candidate_times_us)
    first, rest = first_and_rest(space, 0, candidate_times_us)
    least_us = candidate_times_us(space.kept).min()
    assert candidate_times_us(first).max() <= MOST_PREDICTED * least_us
    assert candidate_times_us(rest[:100]).max() <= 1.1 * least_us
    assert len(found) == len(space.kept) == len({one.config for one in found})
    assert "gemm" not in {one.config.family for one in found[:501]}


@pytest.mark.parametrize(
    ("name", "text", "first", "count"),
    [
        ("tsm2", R.text, False, 10),  # it won nowhere near
        ("stream_a_fma", "16x16x10000000:f32:ntt", False, 10),  # it is for a large C
        ("stream_a_dmma", "16x16x10000000:f64:tn", False, 10),
        ("stream_a_complex_dmma", "16x16x10000000:c128:cn", False, 10),
        # Rows that are no whole vectors pass shared memory
        *(("resident_b_fma_ring", f"{shape}:ttt", True, 3)
          for shape in ("100000x42x5:f32", "10000000x4x35:f32", "10000000x11x43:f64", "100000x16x36:c64")),
    ],
)  # fmt: skip
def test_a_search_tries_what_suits_the_shape_first(name: str, text: str, first: bool, count: int) -> None:
    found = ordered(search_space(Problem.parse(text), H200), 0, candidate_times_us)
    families = [one.config.family for one in found]
    assert (name in families[:count]) == first


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_proposals_are_in_the_space(family: Any) -> None:
    """On every card: a search takes them from the space, and would lose others without a word."""
    for problem, card in zip(a_quarter(family), cycle(CARDS), strict=False):
        wanted = {*family.proposals(problem, H200), *family.proposals(problem, CARDS[card])}
        outside = {config for config in wanted if not family.has(config, problem)}
        assert not outside, f"{problem.text} on the H200 or {card}: {min(outside).text}"


@pytest.mark.parametrize(
    ("text", "older"), [(R.text, "p100"), ("10000000x16x16:f64", "a100"), ("16x64x10000000:bf16:tn", "a100")]
)
def test_nothing_that_is_preferred_is_dropped(text: str, older: str) -> None:
    """Beside the guidelines, which are the user's to set."""
    for card in (older, "h200"):
        space = search_space(Problem.parse(text), PROFILES[card], guidelines=NONE)
        preferred = set(choices(space.families, space.problem, card))
        assert set(places(space.kept, preferred)) == preferred


@pytest.mark.parametrize(
    ("name", "text", "card"),
    [
        ("inner_mma16", "16x64x10000000:bf16:tn", "h200"),
        ("inner_tf32", "16x64x10000000:tf32:tn", "h200"),
        ("staged_complex_dmma", "64x16x10000000:c128:cn", "h200"),
        ("staged_complex_dmma", "32x32x10000:c64:cn", "h200"),
        ("staged_dmma", "24x24x10000:f64:ntt", "h200"),
        ("staged_f32_dmma", "48x48x10000:f32:tn", "h200"),
        ("stream_a_dmma", "10000000x64x8:f64", "h200"),
        ("row_lanes_shared_b", "15360x4x1920:f32:ttt", "h200"),
        ("row_lanes_shared_b", "9973x1x9973:f64:tn", "h200"),  # narrow loads of an A that is not aligned
        ("row_lanes_shared_b", "9973x4x9973:c64:tn", "h200"),
        ("staged_fma", "16x16x10000000:f64:tn", "a100"),  # fewer blocks on a card that holds fewer
        ("staged_symmetric_fma", "16x16x10000000:c128:nxt", "sms128"),
        ("staged_symmetric_dmma", "100x100x200000:f64:tx", "h200"),  # it proposes only configurations with one tile
    ],
)
def test_a_family_has_first_choices_that_the_rules_keep(name: str, text: str, card: str) -> None:
    space = search_space(Problem.parse(text), CARDS[card], families=[name])
    assert {*choices(name, text, card)} & {one.config for one in space.kept}


@pytest.mark.parametrize(
    ("name", "text", "tunables"),
    [
        ("staged_dmma", "64x64x10000:f64:tn", {"splits": 132}),  # a small k has work for no more blocks
        ("staged_dmma", "32x32x100000:f64:tn", {"splits": 264}),
        ("staged_f32_dmma", "64x64x10000:f32:ntt", {"splits": 132}),
        ("resident_b_fma_held", "10000000x64x8:f32", {"across": 64}),  # one group of columns
    ],
)
def test_the_first_choice_has_these_tunables(name: str, text: str, tunables: dict[str, int]) -> None:
    found = choices(name, text)[0].tunables
    assert {one: found[one] for one in tunables} == tunables


@pytest.mark.parametrize("text", ["20480x16x20480:f64", "16x16x10000000:f64:tn", "10000000x8x8:c128"])
def test_a_card_without_f64_tensor_cores_has_measured_first_choices(text: str) -> None:
    problem, found = Problem.parse(text), choices(EVERY, text, "a100")
    assert any(not family_named(config.family).proposals(problem, CARDS["a100"]) for config in found)
