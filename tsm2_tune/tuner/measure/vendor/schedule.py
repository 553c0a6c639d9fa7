"""Decide in which finals of a run the vendor is measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.measure.vendor.blas import product_of
from tsm2_tune.tuner.measure.vendor.finalists import VendorLibraries
from tsm2_tune.tuner.measure.vendor.libraries import CublasError
from tsm2_tune.tuner.search.resume import PriorTrials


@dataclass(slots=True)
class VendorSchedule:
    """The vendor's part in the finals of one run.

    `ask` is called once, for the libraries on the device; `driver` is the driver's version.
    """

    ask: Callable[[], VendorLibraries]
    driver: str
    trouble: str = ""  # why the vendor is measured for no problem
    troubles: dict[Problem, str] = field(default_factory=dict)  # why it is not measured for these problems
    _libraries: VendorLibraries | None = None

    def is_wanted(self, problem: Problem) -> bool:
        """Return whether finals of the problem are to measure the vendor too."""
        if problem in self.troubles:
            return False
        try:
            product_of(problem)
        except CublasError as error:
            self.troubles[problem] = str(error)
            return False
        return bool(self._found().versions)

    def is_due(self, prior: PriorTrials) -> bool:
        """Return whether the problem's last final had none of the libraries, in this version and with this driver."""
        return not any((self.driver, *version) in prior.vendor for version in self._found().versions)

    def keep_out(self, problem: Problem, trouble: str) -> None:
        """Leave the vendor out of the problem's finals in the rest of this run."""
        self.troubles[problem] = trouble

    def _found(self) -> VendorLibraries:
        if self._libraries is None:
            self._libraries = self.ask()
            self.trouble = self._libraries.trouble
        return self._libraries
