"""An argument why a mutant that passes is no bug."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from tests.mutation.sample import Mutant


@dataclass(frozen=True, slots=True)
class Argument:
    """`because` holds where `before` is found in the line and `after` in what it became, by these operators."""

    because: str
    operators: tuple[str, ...]
    before: str = ""
    after: str = ""
    holds: Callable[[Mutant], bool] = lambda mutant: True

    def is_of(self, mutant: Mutant) -> bool:
        """Return whether the argument holds for this mutant."""
        if self.operators and mutant.edit.operator not in self.operators:
            return False
        found = re.search(self.before, mutant.before) and re.search(self.after, mutant.after)
        return found is not None and self.holds(mutant)
