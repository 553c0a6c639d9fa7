"""When the vendor is measured: which finals of a run it takes part in, and what kept it out of the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.measure.vendor.blas import product_of
from tsm2_tune.tuner.measure.vendor.finalists import Libraries
from tsm2_tune.tuner.measure.vendor.libraries import CublasError
from tsm2_tune.tuner.search.resume import Past


@dataclass(slots=True)
class VendorTurn:
    """The vendor in one run.

    `ask` returns once whether the libraries serve the device; `driver` is its driver's version.
    """

    ask: Callable[[], Libraries]
    driver: str
    trouble: str = ""  # of all problems
    troubles: dict[Problem, str] = field(default_factory=dict)  # of one
    _libraries: Libraries | None = None

    def is_wanted(self, problem: Problem) -> bool:
        """Return whether a final of the problem is to measure the vendor too."""
        if problem in self.troubles:
            return False
        try:
            product_of(problem)
        except CublasError as error:
            self.troubles[problem] = str(error)
            return False
        return bool(self._found().versions)

    def is_due(self, past: Past) -> bool:
        """Return whether no library was in the problem's last final, with this driver and in this version."""
        return not any((self.driver, *version) in past.vendor for version in self._found().versions)

    def keep_out(self, problem: Problem, trouble: str) -> None:
        """Try the problem no more in this run."""
        self.troubles[problem] = trouble

    def _found(self) -> Libraries:
        if self._libraries is None:
            self._libraries = self.ask()
            self.trouble = self._libraries.trouble
        return self._libraries
