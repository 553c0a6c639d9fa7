"""A bug is planted once, in one family that shows it, though others have the same lines of a shared template."""

from __future__ import annotations

from importlib import import_module
from itertools import combinations
from pathlib import Path

import pytest

import tsm2_tune
from tests.bugs_by_class import CASES
from tests.cases import SOURCES
from tests.planting import Bug
from tsm2_tune.generator.render import render

TESTS = Path(__file__).parent
TEMPLATES = Path(tsm2_tune.__file__).parent / "templates"
# By what a bug of theirs replaces: the template that has it, and all families that it is rendered for.
SHARED = {
    "current += rings_of_block": ("staged/kernel", "staged_fma staged_dmma staged_f32_dmma staged_complex_dmma"),
    "element = scalar(beta == 0 ?": (
        "parts",
        "gemm gemv ladder resident_b_fma resident_b_dmma row_lanes_shared_b staged_fma staged_dmma staged_f32_dmma"
        " staged_complex_dmma staged_wgmma staged_symmetric_fma staged_symmetric_dmma stream_a_fma stream_a_dmma"
        " stream_a_complex_dmma stream_a_mma16 stream_a_mma16_ring stream_a_tf32 stream_a_tf32_ring inner_fma"
        " inner_fma_16bit inner_fma_ring inner_dmma inner_complex_dmma inner_mma16 inner_tf32",
    ),
}


def planted() -> list[Bug]:
    """Return the bugs of the tests, and those of the table by class that are quick on a host."""
    found = {id(case.bug): case.bug for case in CASES if case.is_quick}
    for path in TESTS.glob("test_*.py"):
        if "tests.planting" in path.read_text():
            for value in vars(import_module(f"tests.{path.stem}")).values():
                found |= {id(one): one for one in value if isinstance(one, Bug)} if isinstance(value, tuple) else {}
    return list(found.values())


def test_no_bug_is_planted_twice() -> None:
    bugs = planted()
    assert len(bugs) > 280
    same = [
        (one.name, other.name)
        for one, other in combinations(bugs, 2)
        if (one.original, one.planted) == (other.original, other.planted)
    ]
    assert same == []


@pytest.mark.parametrize("original", SHARED)
def test_families_share_a_mechanism(original: str) -> None:
    template, families = SHARED[original]
    assert original in (TEMPLATES / f"{template}.cu.jinja").read_text()
    rendered = {config.family for config, problem in SOURCES if original in render(problem, config).text}
    others = sorted(rendered ^ set(families.split()))
    assert not others, f"SHARED in {__file__} names those that have {original!r}: add or remove {', '.join(others)}"
    assert {one.config.family for one in planted() if one.original == original} & rendered
