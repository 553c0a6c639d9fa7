"""Mutants chosen evenly over families, dtypes and operators; of equal lines as few as may be."""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from tests.mutation import numbers, operators, structure
from tests.mutation.edits import Edit, Operator
from tests.mutation.subjects import Subject, text_of

OPERATORS: tuple[Operator, ...] = (
    operators.dropped_terms,
    operators.removed_synchronisation,
    operators.constants_off_by_one,
    operators.comparisons,
    operators.arithmetic,
    operators.swapped_names,
    operators.narrower_types,
    structure.ignored_flags,
    structure.early_stops,
    structure.lasting_state,
    numbers.rounded,
    numbers.narrower_numbers,
    numbers.values,
)


@dataclass(frozen=True)
class Mutant:
    """A subject with one edit."""

    subject: Subject
    edit: Edit

    @property
    def text(self) -> str:
        return self.edit.applied(text_of(self.subject).source)

    @cached_property
    def key(self) -> str:
        """Names it in results, as long as the text stays."""
        return hashlib.sha256(f"{self.subject.name}\n{self.text}".encode()).hexdigest()[:16]

    @property
    def line(self) -> int:
        return text_of(self.subject).line_number(self.edit.start)

    @property
    def before(self) -> str:
        return text_of(self.subject).line(self.edit.start).strip()

    @property
    def after(self) -> str:
        """The changed line; of an edit of several, the first."""
        return self.text.split("\n")[self.line - 1].strip()


def edits_of(subject: Subject) -> Iterator[Edit]:
    """Every edit that an operator makes of the subject's text."""
    text = text_of(subject)
    for operator in OPERATORS:
        yield from operator(text)


def chosen(subjects: dict[tuple[str, str], list[Subject]], *, count: int, seed: int) -> list[Mutant]:
    """So many different mutants, or all: from each family, dtype and operator in turn."""
    source = random.Random(seed)
    cells = defaultdict[tuple[str, str, str], list[Mutant]](list)
    for place, found in subjects.items():
        for subject in found:
            for edit in edits_of(subject):
                cells[(*place, edit.operator)].append(Mutant(subject, edit))
    for mutants in cells.values():
        source.shuffle(mutants)
    order, taken, seen = sorted(cells), dict[str, Mutant](), Counter[tuple[str, ...]]()
    source.shuffle(order)
    while order and len(taken) < count:
        for cell in list(order):
            mutant = _newest(cells[cell], seen, source)
            if mutant is None:
                order.remove(cell)
            elif mutant.key not in taken and len(taken) < count:
                taken[mutant.key] = mutant
    return list(taken.values())


def _newest(mutants: list[Mutant], seen: Counter[tuple[str, ...]], source: random.Random) -> Mutant | None:
    """One of the mutants, taken out of them: of some, that whose change was chosen least often before."""
    if not mutants:
        return None
    among = min(len(mutants), 40)
    places = source.sample(range(len(mutants)), among)
    best = min(places, key=lambda at: seen[_change(mutants[at])])
    mutants[best], mutants[-1] = mutants[-1], mutants[best]
    mutant = mutants.pop()
    seen[_change(mutant)] += 1
    return mutant


def _change(mutant: Mutant) -> tuple[str, ...]:
    """Return a key that is equal for mutants that change the same line of a template in the same way."""
    column = mutant.edit.start - text_of(mutant.subject).source.rfind("\n", 0, mutant.edit.start)
    return mutant.edit.operator, re.sub(r"\d+", "0", mutant.before), str(column), mutant.edit.replacement
