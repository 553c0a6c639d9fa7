"""The class Tuner: it compiles, verifies and times candidates on a device in a loop, and runs finals.

A final times the fastest kernels of a problem again, in turns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import wait
from dataclasses import replace
from functools import cached_property
from itertools import chain
from pathlib import Path

from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.device.roofline import Ceilings
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.generator.source import INDEX_BITS, KernelSource, index_defines
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.tuner.compile.compiler import Toolchain
from tsm2_tune.tuner.compile.elf_digest import machine_code_digest
from tsm2_tune.tuner.compile.pool import Compiled, Compilers, Text, cores
from tsm2_tune.tuner.device.emulator.toolchain import WATCHED_SAMPLE
from tsm2_tune.tuner.device.target import Target
from tsm2_tune.tuner.measure.vendor.schedule import VendorSchedule
from tsm2_tune.tuner.results.trial import Binary, Cache, CompileFailure, Final, Outcome, Trial
from tsm2_tune.tuner.runs.events import FinalFailure, VendorLeftOut
from tsm2_tune.tuner.runs.signals import held
from tsm2_tune.tuner.search.attempt import CHANGED, TRIES, CompiledCandidate, TrialMaker, trial_seed
from tsm2_tune.tuner.search.candidates import Search
from tsm2_tune.tuner.search.compile_queue import CompileQueue, QueuedCandidate
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.phase_timer import PhaseTimer
from tsm2_tune.tuner.search.resume import FinalCandidate, PriorTrials, finalists, is_final_due
from tsm2_tune.tuner.search.strategies.strategy import result_of
from tsm2_tune.tuner.verify.bound_kernel import Entry
from tsm2_tune.tuner.verify.winner_calls import EMULATED, ON_GPU, full_verification
from tsm2_tune.tuner.worker.client import BETWEEN_REQUESTS, AttemptResult, FinalRound, Worker
from tsm2_tune.tuner.worker.time_limit import RunningClock

__all__ = ["FinalFailure", "Options", "Tuner", "cores"]

REQUESTED_AHEAD = 2  # requests that the worker process of a GPU has while the caller handles a trial


class Tuner:
    """Context manager for a device during a run: its worker process, measured peak rates and compilers.

    Entering the context compiles the auxiliary kernels (fill, compare, flush) and starts the worker process, which
    launches all kernels. It raises ToolMissing if the auxiliary kernels do not compile. `phases` measures the time of
    each phase.
    """

    def __init__(self, target: Target, options: Options) -> None:
        self.target, self.options = target, options
        self.phases, self.clock = PhaseTimer(), RunningClock()
        self._worker: Worker | None = None
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
    def cache(self) -> Cache:
        """The L2 state in which trials are timed and ranked."""
        return self.target.cache(self.options.cache)

    @property
    def basis(self) -> str:
        """The hash of compiler, flags and L2 state. Only trials with equal hashes are comparable."""
        return self.target.basis(self.cache)

    @property
    def ceilings(self) -> Ceilings:
        """The device's peak arithmetic rates and bandwidths, measured at the first access in a run."""
        if self._ceilings is None:
            self._ceilings = self.worker.ceilings()
        return self._ceilings

    @property
    def worker(self) -> Worker:
        """The client of the worker process. If the compile cache has lost auxiliary kernels, an access compiles them
        again.
        """
        self._compilers.support()
        if self._worker is None:
            limit, support = self.options.run_limit_seconds, self._compilers.support
            self._worker = Worker(self.target.spec, support, limit_seconds=limit, phases=self.phases)
        return self._worker

    def tune(self, search: Search, on_start: Callable[[Candidate], object] = lambda _: None) -> Iterator[Trial]:
        """Compile, verify and time the candidates of a search. Yield the trial of each candidate.

        The loop ends if the search ends. Candidates are compiled in the background. On a GPU the candidate that is
        compiled first is tried first, and the worker process has the next request before it answers the present one:
        the next kernel runs while the strategy and the caller handle a trial. `on_start` is called with each
        candidate when its trial begins.
        """
        self.phases.enter(BETWEEN_REQUESTS)
        self._measure_ceilings(search)
        queue = CompileQueue(search, self._start_compiler, least_ahead(self.options.sharing, search.remaining))
        requested = deque[CompiledCandidate]()  # by the worker process, in this order
        since = self.clock.seconds()  # the first trial excludes the measurement of the peak rates
        try:
            while self._has_request(requested, queue, search):
                self._send_compiled(requested, queue, search)  # before the wait for a trial
                compiled = requested.popleft()
                on_start(compiled.candidate)
                trial = self._trial_maker.run(compiled, since=since)
                since = self.clock.seconds()
                search.tell(result_of(trial), trial.total_seconds)
                self._send_compiled(requested, queue, search)  # so that the worker is busy while the caller stores
                yield trial
                if not self.target.is_host:
                    queue.step()  # two for each trial, until the queue is full
                    queue.step()
        finally:
            for compiling in queue.compiling:
                compiling.cancel()

    def _measure_ceilings(self, search: Search) -> None:
        """Measure the peak rates before the first trial, since a failure later would lose the trial.

        On a GPU the first candidate is compiled meanwhile. On the CPU a compiler would disturb the measurement.
        """
        first = next(search, None)
        if first is not None:
            if not self.target.is_host:
                self.compile_ahead([first])
            _ = self.ceilings
            search.put_back(first)

    def _has_request(self, requested: deque[CompiledCandidate], queue: CompileQueue, search: Search) -> bool:
        """Return whether the worker process has a request. If it has none, wait for a compiler and send one."""
        if not requested and not search.is_over and (queued := self._wait(queue)) is not None:
            self._send(requested, queued, search)
        return bool(requested)

    def _send_compiled(self, requested: deque[CompiledCandidate], queue: CompileQueue, search: Search) -> None:
        """On a GPU send requests for compiled candidates, until the worker process has REQUESTED_AHEAD of them."""
        while not self.target.is_host and len(requested) < REQUESTED_AHEAD and not search.is_over:
            if (queued := queue.take_compiled()) is None:
                return
            self._send(requested, queued, search)

    def _send(self, requested: deque[CompiledCandidate], queued: QueuedCandidate, search: Search) -> None:
        compiled = self._trial_maker.prepare(*queued, search.fastest_us)
        if not self.target.is_host:
            self._trial_maker.send_ahead(compiled)
        requested.append(compiled)

    def _wait(self, queue: CompileQueue) -> QueuedCandidate | None:
        """Wait for the next compiled candidate; None if none remains. On the CPU, wait until no compiler runs."""
        self.phases.enter("compilers")
        if self.target.is_host:
            while queue.step():
                pass
            wait(list(queue.compiling))
        queued = queue.take()
        self.phases.enter(BETWEEN_REQUESTS)
        return queued

    @cached_property
    def _trial_maker(self) -> TrialMaker:
        worker, ceilings = (lambda: self.worker), (lambda: self.ceilings)
        return TrialMaker(self.target, self.options, self._compilers, worker, ceilings, self.clock)

    def _start_compiler(self, candidate: Candidate) -> tuple[KernelSource, Compiled]:
        """Start a compiler for the candidate. Return its source and the future of its binary."""
        source = render(candidate.problem, candidate.config)
        return source, self._compilers.begin(source)

    def expect(self, problem: Problem) -> None:
        """Compile the verifying kernels for the problem's type: on a GPU in the background, on the CPU at once."""
        self._compilers.begin_support(problem.dtype_name)
        if self.target.is_host:  # a compiler would disturb the measured peak rates
            self._compilers.support(problem.dtype_name)

    def compile_ahead(self, candidates: Sequence[Candidate]) -> list[Compiled]:
        """Start compilers for candidates that will be tried later. Return the futures of their binaries."""
        return [self._start_compiler(candidate)[1] for candidate in candidates]

    @cached_property
    def vendor(self) -> VendorSchedule | None:
        """The object that decides in which finals cuBLAS and cuBLASLt are timed; None on the CPU, or if the options
        exclude them.
        """
        if not self.options.vendor or self.target.is_host:
            return None
        return VendorSchedule(lambda: self.worker.vendor(), self.target.identity.driver)

    def left_out(self, problem: Problem) -> VendorLeftOut | None:
        """Return why cuBLAS and cuBLASLt were not timed in the problem's finals; None if there is no trouble."""
        if self.vendor is None:
            return None
        if problem in self.vendor.troubles:
            return VendorLeftOut(problem, self.vendor.troubles[problem])
        return VendorLeftOut(None, self.vendor.trouble) if self.vendor.trouble else None

    def final(
        self, problem: Problem, prior: PriorTrials, also: Collection[str] = (), *, repeat: bool = False
    ) -> Final | FinalFailure | None:
        """Run a final: time the fastest configurations and the configurations in `also` in turns with cuBLAS and
        cuBLASLt.

        Return the final's times, or the reason why it failed. Return None if the last final of the problem is still
        valid. If `repeat` is true, a final is run even then, but cuBLAS and cuBLASLt are timed only if one of them
        was timed in the last final.
        """
        chosen, vendor = finalists(problem, prior, also), self.vendor if prior.vendor or not repeat else None
        if vendor is not None and not (chosen and vendor.is_wanted(problem)):
            vendor = None
        is_due = is_final_due([one for one, _ in chosen], prior, also)
        if not (is_due or repeat) and (vendor is None or not vendor.is_due(prior)):
            return None
        if chosen and not self.target.is_host:  # compiled for the full verification of the winner
            for source in by_width(problem, chosen[0][0].config):
                self._compilers.begin(source)
        found = self._final(problem, chosen, vendor)
        if vendor is None or isinstance(found, Final) or found.interrupted:
            return found
        without = self._final(problem, chosen, None)
        if isinstance(without, Final):  # the final failed because of the vendor's libraries
            vendor.keep_out(problem, found.detail)
        return without

    def _final(
        self, problem: Problem, chosen: Sequence[tuple[FinalCandidate, KernelSource]], vendor: VendorSchedule | None
    ) -> Final | FinalFailure:
        for _ in range(TRIES):
            entries = []
            for contender, source in chosen:
                binary = self._compilers.finish(source)
                if isinstance(binary, CompileFailure):
                    detail = f"{contender.config.text} does not compile any more: {binary.detail}"
                    return FinalFailure(problem, detail, binary.outcome is Outcome.INTERRUPTED)
                entries.append(Entry(binary.path, source.kernel, source.launch))
            seed = trial_seed(self.options.seed, problem, "final")
            effort = self.options.final_effort
            caches = self.target.caches(self.options.cache, self.options.final_caches)
            request = FinalRound(
                problem, tuple(entries), seed, effort, vendor=vendor is not None, caches=caches,
                support_path=self._compilers.support(problem.dtype_name),
            )  # fmt: skip
            before = self._compilers.files(problem.dtype_name, *(entry.path for entry in entries))
            answer = self.worker.time_finalists(request)
            if not isinstance(answer, AttemptResult):
                if vendor is not None and not answer.vendor:
                    vendor.keep_out(problem, answer.vendor_trouble)
                configs = [one.config for one, _ in chosen]
                by_state = (zip(configs, of_state, strict=True) for of_state in answer.measurements)
                return Final(problem, tuple(chain.from_iterable(by_state)), answer.vendor)
            if self._are_whole(before, [(source, None) for _, source in chosen]):
                return FinalFailure(problem, answer.detail, answer.outcome is Outcome.INTERRUPTED)
        return FinalFailure(problem, CHANGED, interrupted=True)

    def verify_in_full(self, problem: Problem, config: KernelConfig) -> AttemptResult:
        """Verify the configuration's kernel in full, for both index widths. The outcome is OK if every call was
        correct.
        """
        extent = EMULATED if self.target.is_host else ON_GPU
        seed = trial_seed(self.options.seed, problem, f"{config.text} in full")
        texts: list[Text] = [(source, None) for source in by_width(problem, config)]
        named = [f"{bits}-bit indices" for bits in INDEX_BITS]
        watching = self._watching if extent.watched_products else None
        if isinstance(watching, CompileFailure):
            return AttemptResult(watching.outcome, f"with a race check: {watching.detail}")
        if watching is not None:  # only for one index width: both make the same accesses
            texts.append((texts[0][0], watching))
            named.append("a race check")
        for _ in range(TRIES):
            entries = []
            started = [self._compilers.begin(one, toolchain) for one, toolchain in texts]
            for (source, toolchain), name, compiling in zip(texts, named, started, strict=True):
                binary = self._compilers.finish(source, toolchain, compiling)
                if isinstance(binary, CompileFailure):
                    return AttemptResult(binary.outcome, f"with {name}: {binary.detail}")
                entries.append(Entry(binary.path, source.kernel, source.launch))
            support_path = self._compilers.support(problem.dtype_name)
            before = self._compilers.files(problem.dtype_name, *(entry.path for entry in entries))
            widths, watched = entries[: len(INDEX_BITS)], entries[len(INDEX_BITS) :]
            by_bits = tuple(zip(INDEX_BITS, widths, strict=True))
            codes = _codes_of(widths)
            request = full_verification(
                problem, config, by_bits, extent, seed=seed, watched=watched[0] if watched else None
            )
            answer = self.worker.verify_in_full(replace(request, support_path=support_path))
            if self._are_whole(before, texts):
                return replace(answer, verified_code=codes)
        return AttemptResult(Outcome.INTERRUPTED, CHANGED)

    @property
    def _watching(self) -> Toolchain | CompileFailure | None:
        """The toolchain that compiles kernels with race detection.

        None if the compiler has no race detection; a CompileFailure if the test of the compiler was interrupted.
        """
        watching = self.target.watching
        if watching is None:
            return None
        binary = self._compilers.begin_text(WATCHED_SAMPLE, "sample", (), watching).result()
        if isinstance(binary, Binary):
            return watching
        return None if binary.outcome is Outcome.COMPILE_FAILED else binary

    def _are_whole(self, before: tuple[object, ...], texts: Sequence[Text]) -> bool:
        """Return whether the cached binaries of `texts` are still the files that `before` identifies.

        If they are not, stop the worker process, since it may have loaded an old binary.
        """
        if self._compilers.are_whole(before, texts):
            return True
        self.worker.close()
        return False


def _codes_of(entries: Sequence[Entry]) -> str | None:
    """Return the digests of the binaries' machine code, separated by spaces; None if a binary was removed."""
    try:
        return " ".join(machine_code_digest(Path(entry.path).read_bytes()) for entry in entries)
    except (OSError, ValueError):
        return None


def least_ahead(sharing: int, most: int | None) -> int:
    """Return the least number of candidates to compile in advance: the device's number of processor cores, plus one.

    `sharing` is the number of devices that share the machine. If several share it, return at most half of a device's
    share of the `most` remaining trials, but at least 1.
    """
    enough = cores(sharing) + 1
    return enough if most is None or sharing == 1 else max(1, min(enough, most // (2 * sharing)))


def by_width(problem: Problem, config: KernelConfig) -> list[KernelSource]:
    """Return the configuration's kernel source once for each index width, 32 and 64 bits."""
    return [replace(render(problem, config), defines=index_defines(bits)) for bits in INDEX_BITS]
