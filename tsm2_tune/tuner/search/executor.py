"""The interface of the device of a search: it compiles, verifies and times kernels."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Protocol

from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.device.roofline import Ceilings
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.tuner.device.target import Target
from tsm2_tune.tuner.results.trial import Cache, Final, Trial
from tsm2_tune.tuner.runs.events import FinalFailure, VendorLeftOut
from tsm2_tune.tuner.search.candidates import Candidates
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.resume import PriorTrials
from tsm2_tune.tuner.worker.protocol import AttemptResult

FirstCandidates = Callable[[int], Sequence[Candidate]]  # returns as many candidates, or fewer


class Executor(Protocol):
    """A device of a run: a `Tuner` in this process, or a `RemoteExecutor` for a Tuner in another process.

    It neither reads nor writes the database.
    """

    target: Target
    options: Options

    @property
    def cache(self) -> Cache:
        """The L2 state in which trials are timed and ranked."""
        return self.target.cache(self.options.cache)

    @property
    def basis(self) -> str:
        """The hash of compiler, flags and L2 state. Only trials with equal hashes are comparable."""
        return self.target.basis(self.cache)

    @property
    def ceilings(self) -> Ceilings:
        """The device's peak arithmetic rates and bandwidths, measured at the first access."""

    def expect(self, problem: Problem) -> None:
        """Prepare for the problem while its search space is enumerated."""

    def compile_first(self, candidates: FirstCandidates) -> None:
        """Start compilers for the first candidates of a later search. Another thread may use the executor meanwhile.

        Do nothing if the device belongs to another process, which answers one request at a time.
        """

    def tune(self, search: Candidates, on_start: Callable[[Candidate], object] = ...) -> Iterator[Trial]:
        """Compile, verify and time the candidates of a search. Yield the trial of each candidate.

        `on_start` is called with each candidate when its trial begins.
        """

    def final(
        self, problem: Problem, prior: PriorTrials, also: Collection[str] = ..., *, repeat: bool = ...
    ) -> Final | FinalFailure | None:
        """Time the fastest configurations, and those in `also`, interleaved with cuBLAS and cuBLASLt.

        Return None if the last final of the problem is still valid and `repeat` is false.
        """

    def verify_in_full(self, problem: Problem, config: KernelConfig) -> AttemptResult:
        """Verify the configuration's kernel in full. The outcome is OK if every call was correct."""

    def left_out(self, problem: Problem) -> VendorLeftOut | None:
        """Return why cuBLAS and cuBLASLt were not timed in the problem's finals; None if there is no trouble."""
