"""The class Tuner: it compiles, verifies and times candidates on a device in a loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import wait
from functools import cached_property

from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.device.roofline import Ceilings
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.generator.source import KernelSource
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.tuner.compile.pool import Compiled, Compilers, cores
from tsm2_tune.tuner.device.target import Target
from tsm2_tune.tuner.measure.vendor.schedule import VendorSchedule
from tsm2_tune.tuner.results.trial import Final, Trial
from tsm2_tune.tuner.runs.events import FinalFailure, VendorLeftOut
from tsm2_tune.tuner.runs.signals import held
from tsm2_tune.tuner.search.attempt import CompiledCandidate, TrialMaker
from tsm2_tune.tuner.search.candidates import Candidates
from tsm2_tune.tuner.search.compile_queue import CompileQueue, QueuedCandidate
from tsm2_tune.tuner.search.executor import Executor, FirstCandidates
from tsm2_tune.tuner.search.finals import Finals
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.phase_timer import PhaseTimer
from tsm2_tune.tuner.search.resume import PriorTrials
from tsm2_tune.tuner.search.strategies.strategy import result_of
from tsm2_tune.tuner.worker.client import BETWEEN_REQUESTS, AttemptResult, Worker
from tsm2_tune.tuner.worker.time_limit import RunningClock

REQUESTED_AHEAD = 2  # requests that the worker process of a GPU has while the caller handles a trial


class Tuner(Executor):
    """Context manager for a device during a run: its worker process, measured peak rates and compilers.

    Entering the context compiles the support kernels (fill, compare, flush) and starts the worker process, which
    launches all kernels. It raises ToolMissing if the support kernels do not compile. `phases` measures the time of
    each phase. `worker` is the client of the worker process; by default one is made for the target.
    """

    def __init__(self, target: Target, options: Options, worker: Worker | None = None) -> None:
        self.target, self.options = target, options
        self.phases, self.clock = PhaseTimer(), RunningClock()
        self._worker = worker
        self._ceilings: Ceilings | None = None
        self._compilers = Compilers(target.toolchain, options.compile_limit_seconds, options.sharing)

    def __enter__(self) -> Tuner:
        try:
            self.worker.start()  # it initializes the device while the first space is enumerated
        except BaseException:
            self.close()
            raise
        self.clock.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop all compilers and the worker process, and wait until their temporary folders are removed."""
        with held():
            self.clock.stop()
            if self._worker is not None:
                self._worker.close()
            self._compilers.close()

    @property
    def ceilings(self) -> Ceilings:
        """The device's peak arithmetic rates and bandwidths, measured at the first access in a run."""
        if self._ceilings is None:
            self._ceilings = self.worker.ceilings()
        return self._ceilings

    @property
    def worker(self) -> Worker:
        """The client of the worker process."""
        if self._worker is None:
            limit, support = self.options.run_limit_seconds, self._compilers.support
            self._worker = Worker(self.target.spec, support, limit_seconds=limit, phases=self.phases)
        return self._worker

    def tune(self, search: Candidates, on_start: Callable[[Candidate], object] = lambda _: None) -> Iterator[Trial]:
        """Compile, verify and time the candidates of a search. Yield the trial of each candidate.

        The loop ends if the search ends. Candidates are compiled in the background. On a GPU the candidate that is
        compiled first is tried first, and the worker process has the next request before it answers the present one:
        the next kernel runs while the strategy and the caller handle a trial. `on_start` is called with each
        candidate when its trial begins.
        """
        self.phases.enter(BETWEEN_REQUESTS)
        self._measure_ceilings(search)
        requests = _Requests(self, search)
        since = self.clock.seconds()  # the first trial excludes the measurement of the peak rates
        try:
            while (compiled := requests.next()) is not None:
                on_start(compiled.candidate)
                trial = requests.maker.run(compiled, since=since)
                since = self.clock.seconds()
                search.tell(result_of(trial), trial.total_seconds)
                requests.send_compiled()  # so that the worker is busy while the caller stores the trial
                yield trial
                requests.compile_ahead()
        finally:
            requests.cancel()

    def _measure_ceilings(self, search: Candidates) -> None:
        """Measure the peak rates before the first trial, since a failure later would lose the trial.

        On a GPU the first candidate is compiled meanwhile. On the CPU a compiler would disturb the measurement.
        """
        first = next(search, None)
        if first is not None:
            if not self.target.is_host:
                self.compile_ahead([first])
            _ = self.ceilings
            search.put_back(first)

    def trial_maker(self) -> TrialMaker:
        """Return the maker of trials with the present options."""
        worker, ceilings = (lambda: self.worker), (lambda: self.ceilings)
        return TrialMaker(self.target, self.options, worker, ceilings, self.clock)

    def start_compiler(self, candidate: Candidate) -> tuple[KernelSource, Compiled]:
        """Start a compiler for the candidate. Return its source and the future of its binary."""
        source = render(candidate.problem, candidate.config)
        return source, self._compilers.begin(source)

    def expect(self, problem: Problem) -> None:
        """Compile the support kernels for the problem's type: on a GPU in the background, on the CPU at once."""
        self._compilers.begin_support(problem.dtype_name)
        if self.target.is_host:  # a compiler would disturb the measured peak rates
            self._compilers.support(problem.dtype_name)

    def compile_first(self, candidates: FirstCandidates) -> None:
        self.compile_ahead(candidates(least_ahead(self.options.sharing, self.options.max_trials)))

    def compile_ahead(self, candidates: Sequence[Candidate]) -> list[Compiled]:
        """Start compilers for candidates that will be tried later. Return the futures of their binaries."""
        return [self.start_compiler(candidate)[1] for candidate in candidates]

    @cached_property
    def vendor(self) -> VendorSchedule | None:
        """The object that decides in which finals cuBLAS and cuBLASLt are timed; None on the CPU, or if the options
        exclude them.
        """
        if not self.options.vendor or self.target.is_host:
            return None
        return VendorSchedule(lambda: self.worker.vendor(), self.target.identity.driver)

    def left_out(self, problem: Problem) -> VendorLeftOut | None:
        if self.vendor is None:
            return None
        if problem in self.vendor.troubles:
            return VendorLeftOut(problem, self.vendor.troubles[problem])
        return VendorLeftOut(None, self.vendor.trouble) if self.vendor.trouble else None

    def final(
        self, problem: Problem, prior: PriorTrials, also: Collection[str] = (), *, repeat: bool = False
    ) -> Final | FinalFailure | None:
        return self._finals().run(problem, prior, also, repeat=repeat)

    def verify_in_full(self, problem: Problem, config: KernelConfig) -> AttemptResult:
        return self._finals().verify_in_full(problem, config)

    def _finals(self) -> Finals:
        return Finals(self.target, self.options, self._compilers, lambda: self.worker, self.vendor)


class _Requests:
    """The requests of a search to the worker process, and the candidates that are compiled for the next ones.

    On the CPU there is one request at a time, and no compiler runs meanwhile, since it would disturb the timing.
    """

    def __init__(self, tuner: Tuner, search: Candidates) -> None:
        self.maker = tuner.trial_maker()
        self._search, self._phases, self._is_host = search, tuner.phases, tuner.target.is_host
        self._queue = CompileQueue(search, tuner.start_compiler, least_ahead(tuner.options.sharing, search.remaining))
        self._sent = deque[CompiledCandidate]()  # to the worker process, in this order

    def next(self) -> CompiledCandidate | None:
        """Return the candidate whose trial is next, and wait for its compiler; None if no candidate remains."""
        if not self._sent and not self._search.is_over and (queued := self._await_compiler()) is not None:
            self._send(queued)
        self.send_compiled()
        return self._sent.popleft() if self._sent else None

    def send_compiled(self) -> None:
        """On a GPU send requests for compiled candidates, until the worker process has REQUESTED_AHEAD of them."""
        while not self._is_host and len(self._sent) < REQUESTED_AHEAD and not self._search.is_over:
            if (queued := self._queue.take_compiled()) is None:
                return
            self._send(queued)

    def compile_ahead(self) -> None:
        """On a GPU start two more compilers, until the queue is full."""
        if not self._is_host:
            self._queue.step()
            self._queue.step()

    def cancel(self) -> None:
        """Cancel the compilers of candidates that will not be tried."""
        for compiling in self._queue.compiling:
            compiling.cancel()

    def _send(self, queued: QueuedCandidate) -> None:
        compiled = self.maker.prepare(*queued, self._search.fastest_us)
        if not self._is_host:
            self.maker.send_ahead(compiled)
        self._sent.append(compiled)

    def _await_compiler(self) -> QueuedCandidate | None:
        """Wait for the next compiled candidate; None if none remains. On the CPU, wait until no compiler runs."""
        self._phases.enter("compilers")
        if self._is_host:
            while self._queue.step():
                pass
            wait(list(self._queue.compiling))
        queued = self._queue.take()
        self._phases.enter(BETWEEN_REQUESTS)
        return queued


def least_ahead(sharing: int, most: int | None) -> int:
    """Return the least number of candidates to compile in advance: a device's number of processor cores, plus one.

    If several devices share the machine, return at most half of a device's share of the `most` remaining trials.
    """
    enough = cores(sharing) + 1
    return enough if most is None or sharing == 1 else max(1, min(enough, most // (2 * sharing)))
