"""Guidelines are the user's to set: a threshold that is moved makes the space larger or smaller, the others stay."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from tests.command import run
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.families import family_named
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.guidelines import Guidelines, parse_thresholds
from tsm2_tune.generator.space.space import search_space

H200 = PROFILES["h200"]
R = Problem(20480, 16, 20480, "f32")
SQUARE = Problem(4096, 4096, 4096, "f32")
CARDS = (PROFILES["h200"], PROFILES["s2050"])
NONE = {"min_threads_per_sm": 0, "min_blocks_per_sm": 0, "min_reuse": 0, "min_line_bytes": 0}

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_driver")]


def kept(family: str, guidelines: str) -> int:
    problem = SQUARE if family == "gemm" else R
    return len(search_space(problem, H200, guidelines=parse_thresholds(guidelines), families=[family]).kept)


def test_thresholds_are_spelt_by_name() -> None:
    assert parse_thresholds("") == {}
    assert parse_thresholds("none") == NONE
    assert parse_thresholds("none, min-reuse=2.5") == NONE | {"min_reuse": 2.5}
    assert parse_thresholds("min-threads-per-sm=512, min_reuse=2.5,") == {"min_threads_per_sm": 512, "min_reuse": 2.5}


@pytest.mark.parametrize(
    "guidelines",
    [Guidelines(), Guidelines(min_reuse=2.5), *(family_named("gemm").guidelines(SQUARE, card) for card in CARDS)],
    ids=lambda guidelines: guidelines.text,
)
def test_what_is_printed_can_be_typed(guidelines: Guidelines) -> None:
    assert Guidelines(1, 2, 3, 4).moved(parse_thresholds(guidelines.text)) == guidelines


@pytest.mark.parametrize(
    ("family", "name", "values"),
    [
        ("tsm2", "min-threads-per-sm", (0, 512, 10**30)),
        ("tsm2", "min-blocks-per-sm", (0, 4, 10**30)),
        ("tsm2", "min-reuse", (0, 2.5, 1e300)),
        ("gemm", "min-threads-per-sm", (0, 512, 10**30)),
        ("gemm", "min-blocks-per-sm", (0, 4, 10**30)),
        ("gemm", "min-reuse", (0, 2.5, 3, 4, 1e300)),
        ("gemm", "min-line-bytes", (0, 64, 10**30)),
    ],
)
def test_a_lower_threshold_keeps_more_and_a_higher_one_fewer(
    family: str, name: str, values: tuple[float, ...]
) -> None:
    counts = [kept(family, f"{name}={value}") for value in values]
    assert counts == sorted(set(counts), reverse=True)


def test_short_lines_of_memory_are_the_stencils_alone() -> None:
    assert kept("tsm2", "min-line-bytes=1000000") == kept("tsm2", "")


def test_guidelines_as_a_whole_stand_for_those_of_every_family() -> None:
    space = search_space(SQUARE, H200, guidelines=Guidelines(512, 2, 4), families=["gemm", "tsm2"])
    assert len(space.families) == 2
    assert set(space.guidelines) == {Guidelines(512, 2, 4)}


def asked(*arguments: str) -> Any:
    (found,) = json.loads(run("space", "--device", "h200", *arguments, "--json").output)
    return found


def test_one_threshold_moves_and_the_others_stay_the_familys_own() -> None:
    moved = ((), ("--guidelines", "min-threads-per-sm=1024"), ("--guidelines", "min-reuse=3"))
    own, fewer, more = (asked("--family", "gemm", *given) for given in moved)
    assert own["guidelines"]["gemm"] != asdict(Guidelines())
    assert own["guidelines"]["gemm"]["min_line_bytes"] == 32
    assert fewer["guidelines"]["gemm"] == own["guidelines"]["gemm"] | {"min_threads_per_sm": 1024}
    assert more["guidelines"]["gemm"] == own["guidelines"]["gemm"] | {"min_reuse": 3}
    assert fewer["kept"] < own["kept"] < more["kept"]
    assert fewer["total"] == own["total"] == more["total"]


def test_the_command_prints_what_is_in_force() -> None:
    printed = run("space", "--device", "h200", "--guidelines", "min-reuse=2").output
    own = family_named("gemm").guidelines(Problem(8192, 8192, 8192, "f32"), H200)
    assert f"guidelines of gemm: {replace(own, min_reuse=2.0).text}" in printed
    assert f": {replace(Guidelines(), min_reuse=2.0).text}\n" in printed
