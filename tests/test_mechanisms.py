"""A bug is planted once, in one family that shows it, though others have the same lines of a shared template."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import pytest

import tsm2_tune
from tests.cases import SOURCES
from tests.planting import GPU, bugs, pattern
from tsm2_tune.generator.render import render
from tsm2_tune.generator.source import code

TEMPLATES = Path(tsm2_tune.__file__).parent / "templates"
# By what a bug of theirs replaces: the template that has it, and all families that it is rendered for.
SHARED = {
    "current += rings_of_block": ("staged/kernel", "staged_fma staged_dmma staged_f32_dmma staged_complex_dmma"),
    "before the store": (
        "parts",
        "gemm gemv ladder resident_b_fma resident_b_dmma row_lanes_shared_b staged_fma staged_dmma staged_f32_dmma"
        " staged_complex_dmma staged_wgmma staged_symmetric_fma staged_symmetric_dmma stream_a_fma stream_a_dmma"
        " stream_a_complex_dmma stream_a_mma16 stream_a_mma16_ring stream_a_tf32 stream_a_tf32_ring inner_fma"
        " inner_fma_16bit inner_fma_ring inner_dmma inner_complex_dmma inner_mma16 inner_tf32",
    ),
}


def test_no_bug_is_planted_twice() -> None:
    same = [
        (one.name, other.name)
        for one, other in combinations(filter(lambda bug: bug.way != GPU, bugs()), 2)
        if (one.original, one.planted) == (other.original, other.planted)
    ]
    assert same == []


def test_every_class_has_bugs_in_several_families_and_types() -> None:
    every = [bug for bug in bugs() if bug.kind]
    for kind in {bug.kind for bug in every}:
        families = {bug.config.family for bug in every if bug.kind == kind}
        assert len(families) >= 3 or kind == "alignment", kind
    assert len({bug.config.family for bug in every}) >= 18
    types = {bug.problem.dtype_name for bug in every}
    assert types >= {"f32", "f64", "c64", "c128", "bf16", "f16", "tf32", "minplus_f32"}


@pytest.mark.slow
def test_a_kernel_on_one_line_has_each_bug_at_the_same_place() -> None:
    for bug in bugs():
        text = code(render(bug.problem, bug.config).text)
        planted = bug.plant(text)
        assert planted.split() != text.split(), bug.full_name
        assert bug.plant(" ".join(text.split())).split() == planted.split(), bug.full_name


@pytest.mark.parametrize("original", SHARED)
def test_families_share_a_mechanism(original: str) -> None:
    template, families = SHARED[original]
    assert re.search(pattern(original), (TEMPLATES / f"{template}.cu.jinja").read_text())
    rendered = {
        one.family for one, problem in SOURCES if re.search(pattern(original), code(render(problem, one).text))
    }
    others = sorted(rendered ^ set(families.split()))
    assert not others, f"SHARED in {__file__} names those that have {original!r}: add or remove {', '.join(others)}"
    assert {one.config.family for one in bugs() if one.original == original} & rendered
