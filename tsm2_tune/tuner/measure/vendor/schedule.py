"""Selection of the finals (repeated timings of the fastest kernels) in which cuBLAS and cuBLASLt are timed too."""

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
    """Decides in which finals of one run the vendor's libraries are timed.

    A final times the fastest kernels of a problem again, interleaved. `ask` is a function that returns the vendor's
    libraries for the run's device. It is called at most once. `driver` is the driver's version.
    """

    ask: Callable[[], VendorLibraries]
    driver: str
    trouble: str = ""  # why the vendor is timed for no problem; "" if it is timed
    troubles: dict[Problem, str] = field(default_factory=dict)  # problem -> why the vendor is not timed for it
    _libraries: VendorLibraries | None = None

    def is_wanted(self, problem: Problem) -> bool:
        """Return whether cuBLAS or cuBLASLt can be timed for the problem. If not, store the reason.

        The reason is stored in `troubles` if it concerns the problem, and in `trouble` if it concerns the device.
        """
        if problem in self.troubles:
            return False
        try:
            product_of(problem)
        except CublasError as error:
            self.troubles[problem] = str(error)
            return False
        return bool(self._found().versions)

    def is_due(self, prior: PriorTrials) -> bool:
        """Return whether the last final of the problem lacks times of the present library versions and driver."""
        return not any((self.driver, *version) in prior.vendor for version in self._found().versions)

    def keep_out(self, problem: Problem, trouble: str) -> None:
        """Do not time cuBLAS and cuBLASLt for the problem later in this run, for the reason `trouble`."""
        self.troubles[problem] = trouble

    def _found(self) -> VendorLibraries:
        if self._libraries is None:
            self._libraries = self.ask()
            self.trouble = self._libraries.trouble
        return self._libraries
