"""An executor whose device is used by another process, on this machine or on another one.

The other process compiles, verifies and times kernels with a Tuner. The run keeps the search, the strategy and the
database. If the other process dies, only the trials that it was asked for are tried again, by other devices.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from tsm2_tune.errors import WorkerError
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.device.roofline import Ceilings
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.tuner.device.target import Target
from tsm2_tune.tuner.results.trial import Final, Trial
from tsm2_tune.tuner.runs import messages
from tsm2_tune.tuner.runs.events import FinalFailure, VendorLeftOut
from tsm2_tune.tuner.search.candidates import Candidates
from tsm2_tune.tuner.search.executor import Executor, FirstCandidates
from tsm2_tune.tuner.search.finals import finalists
from tsm2_tune.tuner.search.loop import least_ahead
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.phase_timer import PhaseTimer
from tsm2_tune.tuner.search.resume import PriorTrials
from tsm2_tune.tuner.search.strategies.strategy import result_of
from tsm2_tune.tuner.worker.protocol import AttemptResult

T = TypeVar("T")


class ExecutorLost(WorkerError):
    """The process that uses a device was lost."""


class RemoteExecutor(Executor):
    """The executor for a device that another process uses, see `Executor`.

    Each method waits for the process's answer. It raises the process's error, or ExecutorLost.
    """

    def __init__(
        self, channel: messages.Channel, device: Target | str | None, options: Options, *, wait: bool
    ) -> None:
        """Ask the process at the other end of the channel to open the device. Do not wait."""
        self.options, self.phases = options, PhaseTimer()
        self._channel = channel
        self._opened: messages.Opened | None = None
        self._left_out: dict[Problem, VendorLeftOut] = {}
        self._send(messages.OpenDevice(device, options, wait))

    def open(self, tell: Callable[[str], object]) -> Target:
        """Wait until the device is open, and return it. `tell` is called with sentences for the user."""
        while not isinstance(answer := self._receive(), messages.Opened):
            if isinstance(answer, messages.Note):
                tell(answer.text)
        self._opened, self.target = answer, answer.target
        return self.target

    @property
    def ceilings(self) -> Ceilings:
        assert self._opened is not None
        return self._opened.ceilings

    def expect(self, problem: Problem) -> None:
        self._send(messages.Expect(problem))

    def compile_first(self, candidates: FirstCandidates) -> None:
        """Do nothing."""

    def tune(self, search: Candidates, on_start: Callable[[Candidate], object] = lambda _: None) -> Iterator[Trial]:
        """Have the candidates of a search tried. Yield the trial of each candidate.

        If the process is lost, the candidates that it was asked for are put back.
        """
        asked = deque[Candidate]()
        try:
            yield from self._tune(search, asked, on_start)
        except ExecutorLost:
            if asked:
                search.put_back(asked.popleft(), is_suspect=True)
            raise
        finally:
            for candidate in asked:
                search.put_back(candidate)

    def _tune(
        self, search: Candidates, asked: deque[Candidate], on_start: Callable[[Candidate], object]
    ) -> Iterator[Trial]:
        has_begun = False
        while not search.is_over:
            while len(asked) < self._most_ahead(search) and (candidate := next(search, None)) is not None:
                if not has_begun:
                    self._send(messages.BeginSearch(candidate.problem, self.options, search.fastest_us))
                    has_begun = True
                self._send(messages.Try(candidate.config, candidate.guidelines, search.fastest_us))
                asked.append(candidate)
            if not asked:
                break
            on_start(asked[0])
            yield self._ended(self._await(messages.TrialEnded).trial, search, asked)
        if has_begun:
            self._send(messages.EndSearch())
            while not isinstance(answer := self._receive(), messages.SearchEnded):
                if isinstance(answer, messages.TrialEnded):
                    yield self._ended(answer.trial, search, asked)
            asked.clear()  # the search is over, so that nobody tries the others

    def _most_ahead(self, search: Candidates) -> int:
        """Return the number of candidates that the process is asked for before it answers the first."""
        assert self._opened is not None
        if search.remaining is None:
            return self._opened.ahead
        return min(self._opened.ahead, 2 * least_ahead(self.options.sharing, search.remaining))

    def _ended(self, trial: Trial, search: Candidates, asked: deque[Candidate]) -> Trial:
        of_trial = (one for one in asked if (one.config, one.problem) == (trial.config, trial.problem))
        candidate = next(of_trial, None)
        if candidate is None:
            raise WorkerError(f"its process sent a trial of {trial.config.text} that it was not asked for")
        asked.remove(candidate)
        search.tell(result_of(trial), trial.total_seconds)
        return trial

    def final(
        self, problem: Problem, prior: PriorTrials, also: Collection[str] = (), *, repeat: bool = False
    ) -> Final | FinalFailure | None:
        contenders = tuple(one for one, _ in finalists(problem, prior, also))
        needed = replace(prior, tried=frozenset(), results=(), contenders=contenders)
        self._send(messages.RunFinal(problem, self.options, needed, tuple(also), repeat))
        answer = self._await(messages.FinalEnded)
        if isinstance(answer.final, Final):
            timed = {one.text for one, _ in answer.final.measurements}
            if answer.final.problem != problem or not timed <= {one.config.text for one in contenders}:
                raise WorkerError(
                    f"its process sent a final of {answer.final.problem.text} that it was not asked for"
                )
        self._left_out.pop(problem, None)
        if answer.left_out is not None:
            self._left_out[problem] = answer.left_out
        return answer.final

    def verify_in_full(self, problem: Problem, config: KernelConfig) -> AttemptResult:
        self._send(messages.VerifyInFull(problem, config))
        return self._await(AttemptResult)

    def left_out(self, problem: Problem) -> VendorLeftOut | None:
        return self._left_out.get(problem)

    def _send(self, request: messages.Request) -> None:
        with suppress(OSError):  # the process is lost, which `_receive` reports
            self._channel.send(request)

    def _await(self, kind: type[T]) -> T:
        """Return the next answer, which is of this kind."""
        answer = self._receive()
        if not isinstance(answer, kind):
            raise WorkerError(f"its process sent {type(answer).__name__} instead of {kind.__name__}")
        return answer

    def _receive(self) -> messages.Answer:
        while True:
            try:
                answer: messages.Answer = self._channel.recv()
            except (EOFError, OSError):
                raise ExecutorLost("its process was lost") from None
            if isinstance(answer, messages.Phase):
                self.phases.enter(answer.name)
            elif isinstance(answer, messages.Failed):
                raise answer.error
            else:
                return answer
