"""The texts that are changed: of each family and dtype so few that every line of its texts is in one of them.

But for those of configurations that a host takes too long for.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cache

from tests.mutation.tokens import Text, shared_lines
from tests.test_gpu import CASES
from tests.test_render import SOURCES
from tsm2_tune.generator.config import FLAT_SPLITS, GROUP_SPLITS, KernelConfig
from tsm2_tune.generator.families import family_named
from tsm2_tune.generator.probes import edge_problems
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import KernelSource, render
from tsm2_tune.generator.tiles import SKINNY

SPLITS = 5  # of more, which are slow on the host; no divisor of what is one from a power of two
DEPTH, LESS_DEEP = 256, 64  # of the problem that is verified beside the probes, whose blocks are whole
COLUMNS = 8  # of its C, where a block has all of them
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


def subjects(families: tuple[str, ...] = (), dtypes: tuple[str, ...] = ()) -> dict[tuple[str, str], list[Subject]]:
    """(family, dtype) -> its subjects, of those families and dtypes alone if any are named."""
    candidates = defaultdict[tuple[str, str], list[Subject]](list)
    for config, case in (*CASES, *SOURCES):
        place = (config.family, case.dtype_name)
        if (not families or place[0] in families) and (not dtypes or place[1] in dtypes):
            candidates[place] += _small(config, case)
    return {place: _covering(_cheap(list(dict.fromkeys(found)))) for place, found in sorted(candidates.items())}


def _small(config: KernelConfig, case: Problem) -> Iterator[Subject]:
    """The configuration with few splits; and with as few as are added up in groups, where it had more than those."""
    family = family_named(config.family)
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


def _cheap(candidates: list[Subject]) -> list[Subject]:
    """Those that are verified soon, or the one that is soonest."""
    dearest_last = sorted(candidates, key=_products)
    return [one for one in dearest_last if _products(one) <= MOST_PRODUCTS] or dearest_last[:1]


def _products(subject: Subject) -> int:
    """That are computed once for each check of a problem at an edge."""
    problems = edge_problems(subject.config, subject.problem)
    return subject.problem.dtype.parts**2 * sum(one.m * one.n * one.k for one in problems)


def _covering(candidates: list[Subject]) -> list[Subject]:
    """So few of them that no other has a line, but for numbers, that none of these has."""
    lines, cost = {one: _lines(one) for one in candidates}, {one: _products(one) for one in candidates}
    chosen, covered = list[Subject](), set[str]()
    while candidates:
        best = max(candidates, key=lambda one: len(lines[one] - covered) / (COST_OF_A_SUBJECT + cost[one]))
        if not lines[best] - covered:
            return chosen
        chosen.append(best)
        covered |= lines[best]
        candidates.remove(best)
    return chosen


def _lines(subject: Subject) -> frozenset[str]:
    lines = shared_lines(subject.source.text).values()
    return frozenset(re.sub(r"\d+", "0", line.partition("//")[0].strip()) for line in lines)
