"""The texts that are changed: of each family and dtype so few that every line of its texts is in one of them.

But for those of configurations that a host takes too long for.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cache

from tests.cases import CASES, SOURCES
from tests.mutation.tokens import Text, shared_lines
from tsm2_tune.generator.config import FLAT_SPLITS, GROUP_SPLITS, KernelConfig
from tsm2_tune.generator.families import family_named
from tsm2_tune.generator.probes import edge_problems
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.generator.source import KernelSource
from tsm2_tune.generator.tiles import SKINNY

SPLITS = 5  # of more, which are slow on the host; no divisor of what is one from a power of two
DEPTH, LESS_DEEP = 256, 64  # of the problem that is verified beside the probes, whose blocks are whole
COLUMNS = 8  # columns of its C, if a block has all of them
COST_OF_A_SUBJECT = 1e7  # of one that has none
MOST_PRODUCTS = 1e8  # of real numbers, at the edges: others take minutes, and are left where there are cheaper ones


@dataclass(frozen=True, slots=True)
class Subject:
    """One configuration's text for one problem."""

    config: KernelConfig
    problem: Problem

    @property
    def name(self) -> str:
        return f"{self.config.text} {self.problem.dtype_name} {self.problem.op}"

    @property
    def source(self) -> KernelSource:
        return render(self.problem, self.config)


@cache
def text_of(subject: Subject) -> Text:
    """The subject's text as tokens."""
    return Text(subject.source.text)


def subjects(families: tuple[str, ...] = ()) -> dict[tuple[str, str], list[Subject]]:
    """(family, dtype) -> its subjects, of those families alone if any are named."""
    places = defaultdict[tuple[str, str], list[Subject]](list)
    for one in candidates():
        if not families or one.config.family in families:
            places[one.config.family, one.problem.dtype_name].append(one)
    return {
        place: covering(_cheap(found), lines_of, lambda one: COST_OF_A_SUBJECT + cost_of(one))
        for place, found in sorted(places.items())
    }


def candidates() -> list[Subject]:
    """Return the subjects small enough for a host, of the configurations for GPUs and of the golden ones."""
    return list(dict.fromkeys(one for config, case in (*CASES, *SOURCES) for one in _small(config, case)))


def _small(config: KernelConfig, case: Problem) -> Iterator[Subject]:
    """The configuration with few splits; and with as few as are added up in groups, where it had more than those."""
    family = family_named(config.family)
    if family.is_batched:
        yield Subject(config, case)
        return
    splits = int(config.tunables["splits"]) if "splits" in {field.name for field in fields(config)} else 0
    choices = [SPLITS, FLAT_SPLITS + 2] if splits > FLAT_SPLITS else [SPLITS]
    if family.launch(config, case).persistent:
        choices = [GROUP_SPLITS + 3]  # of which the blocks of one tile add up slices
    for fewer in (min(splits, choice) for choice in choices):
        made = replace(config, splits=fewer) if splits else config  # type: ignore[call-arg]
        launch = family.launch(made, case)
        m, n = 2 * launch.rows_per_block, launch.columns_per_block or COLUMNS
        shapes = ((m, n), (m, 1), (2 * SKINNY, 2 * SKINNY)) if not case.is_gram else ((m, m),)
        problems = (replace(case, m=m, n=n, k=k) for k in (DEPTH, LESS_DEEP) for m, n in shapes)
        yield from (Subject(made, problem) for problem in [*filter(family.supports, problems)][:1])


def _cheap(subjects: list[Subject]) -> list[Subject]:
    """Return the subjects that are verified soon, or the one that is verified soonest."""
    dearest_last = sorted(subjects, key=cost_of)
    return [one for one in dearest_last if cost_of(one) <= MOST_PRODUCTS] or dearest_last[:1]


def cost_of(subject: Subject) -> int:
    """Products that are computed once for each check of a problem at an edge."""
    problems = edge_problems(subject.config, subject.problem)
    return subject.problem.dtype.parts**2 * sum(one.m * one.n * one.k for one in problems)


def covering(
    subjects: list[Subject], facts: Callable[[Subject], frozenset[str]], cost: Callable[[Subject], float]
) -> list[Subject]:
    """So few of them, of so little cost, that no other has a fact that none of these has."""
    found, price = {one: facts(one) for one in subjects}, {one: cost(one) for one in subjects}
    chosen, covered = list[Subject](), set[str]()
    left = list(subjects)
    while left:
        best = max(left, key=lambda one: len(found[one] - covered) / price[one])
        chosen.append(best)
        covered |= found[best]
        left = [one for one in left if found[one] - covered]
    return chosen


def lines_of(subject: Subject) -> frozenset[str]:
    """The lines of its text, of whatever numbers."""
    lines = shared_lines(subject.source.text).values()
    code = "\n".join(line.partition("//")[0].strip() for line in lines)
    return frozenset(re.sub(r"\d+", "0", code).split("\n"))
