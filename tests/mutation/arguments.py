"""Why a mutant that passes is no bug: each argument with the changes that it is of."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.mutation.sample import Mutant


@dataclass(frozen=True, slots=True)
class Argument:
    """`because` holds for changes of these operators, of lines that `before` is found in, to such as `after`."""

    because: str
    operators: tuple[str, ...]
    before: str
    after: str = ""


ARGUMENTS: tuple[Argument, ...] = ()


def argument(mutant: Mutant) -> str:
    """Why the mutant is equivalent; "" where nothing in the table says so."""
    for one in ARGUMENTS:
        if mutant.edit.operator in one.operators or not one.operators:
            if re.search(one.before, mutant.before) and re.search(one.after, mutant.after):
                return one.because
    return ""
