"""The texts that are changed: of each family and dtype so few that every line of its texts is in one of them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cache

from tests.mutation.tokens import Text
from tests.test_gpu import CASES
from tests.test_render import SOURCES
from tsm2_tune.generator.config import FLAT_SPLITS, KernelConfig
from tsm2_tune.generator.families import family_named
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import KernelSource, render

SPLITS = 3  # which are slow on the host
SHAPES = ((64, 4, 64), (64, 1, 64), (64, 64, 64), (65, 67, 19))  # the first that the family knows


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
    return {place: _covering(list(dict.fromkeys(found))) for place, found in sorted(candidates.items())}


def _small(config: KernelConfig, case: Problem) -> Iterator[Subject]:
    """The configuration with few splits; and with as few as are added up in groups, where it had more than those."""
    family = family_named(config.family)
    splits = int(config.tunables["splits"]) if "splits" in {field.name for field in fields(config)} else 0
    for fewer in (min(splits, SPLITS), FLAT_SPLITS + 2) if splits > FLAT_SPLITS else (min(splits, SPLITS),):
        made = replace(config, splits=fewer) if splits else config  # type: ignore[call-arg]
        for shape in SHAPES:
            problem = Problem(*shape, case.dtype_name, case.op) if not case.is_gram or shape[0] == shape[1] else None
            if problem is not None and family.supports(problem):
                yield Subject(made, problem)
                break


def _covering(candidates: list[Subject]) -> list[Subject]:
    """So few of them that no other has a line, but for numbers, that none of these has."""
    lines = {one: _lines(one) for one in candidates}
    chosen, covered = list[Subject](), set[str]()
    while candidates:
        best = max(candidates, key=lambda one: len(lines[one] - covered))
        if not lines[best] - covered:
            return chosen
        chosen.append(best)
        covered |= lines[best]
        candidates.remove(best)
    return chosen


def _lines(subject: Subject) -> frozenset[str]:
    text = text_of(subject)
    starts = {text.line_number(token.start): token.start for token in text.tokens}
    numbered = (re.sub(r"\d+", "0", text.line(start)) for start in starts.values())
    return frozenset(line.partition("//")[0].strip() for line in numbered)
