"""The tuning loop: compile, verify and measure candidates in order, and yield each Trial."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cached_property
from itertools import chain, count
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
from tsm2_tune.tuner.runs.events import FinalFailure
from tsm2_tune.tuner.runs.signals import held
from tsm2_tune.tuner.search.attempt import CHANGED, TRIES, CompiledCandidate, TrialMaker, trial_seed
from tsm2_tune.tuner.search.candidates import Search, Why
from tsm2_tune.tuner.search.compile_queue import CompileQueue, QueuedCandidate
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.phase_timer import PhaseTimer
from tsm2_tune.tuner.search.resume import FinalCandidate, PriorTrials, finalists, is_final_due
from tsm2_tune.tuner.search.strategies.strategy import result_of
from tsm2_tune.tuner.verify.bound_kernel import Entry
from tsm2_tune.tuner.verify.winner_calls import EMULATED, ON_GPU, full_verification
from tsm2_tune.tuner.worker.client import (
    BETWEEN_REQUESTS,
    AttemptResult,
    FinalRound,
    IdleWork,
    Worker,
    no_idle_work,
)
from tsm2_tune.tuner.worker.time_limit import RunningClock

__all__ = ["FinalFailure", "Options", "Tuner", "cores"]


class Tuner:
    """A device during a run: its worker, ceilings and compilers. Use as a context manager.

    `phases` measures the time of each phase.

    Entering it compiles the tuner's own kernels and starts the worker. Raise ToolMissing if they do not compile.
    """

    def __init__(self, target: Target, options: Options) -> None:
        self.target, self.options = target, options
        self.phases, self.clock = PhaseTimer(), RunningClock()
        self._worker: Worker | None = None
        self._ceilings: Ceilings | None = None
        self._compilers = Compilers(target.toolchain, options.compile_limit_seconds, options.sharing)

    def __enter__(self) -> Tuner:
        try:
            self.worker.start()  # it opens the device while the first space is enumerated
        except BaseException:
            self.close()
            raise
        self.clock.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every compiler and the worker, and wait until their folders are gone."""
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
        """The basis of this run's trials."""
        return self.target.basis(self.cache)

    @property
    def ceilings(self) -> Ceilings:
        """The device's ceilings, measured when they are first needed in a run."""
        if self._ceilings is None:
            self._ceilings = self.worker.ceilings()
        return self._ceilings

    @property
    def worker(self) -> Worker:
        """The device's process, or who starts it: it needs the support kernels, which the cache may have lost."""
        self._compilers.support()
        if self._worker is None:
            limit, support = self.options.run_limit_seconds, self._compilers.support
            self._worker = Worker(self.target.spec, support, limit_seconds=limit, phases=self.phases)
        return self._worker

    def tune(
        self,
        search: Search,
        in_one_transaction: Callable[[], AbstractContextManager[object]] = nullcontext,
        idle_work: IdleWork = no_idle_work,
        on_start: Callable[[Candidate], object] = lambda _: None,
    ) -> Iterator[Trial]:
        """Try the candidates of a search until it ends or the budget is spent; yield each trial.

        Candidates are claimed, several in the context `in_one_transaction`, then compiled. On a GPU the first
        compiled candidate is tried next. `on_start` is called when a trial begins. An interrupted trial says nothing
        about its kernel.

        While a kernel runs on a GPU, the strategy gets the previous result, the next request is sent ahead, more
        candidates are compiled, and `idle_work` is called.
        """
        options, seconds = self.options, self.clock.seconds
        self.phases.enter(BETWEEN_REQUESTS)
        first = next(search, None)
        if first is not None:
            if not self.target.is_host:  # a compiler would disturb the host's ceilings
                self.compile_ahead([first])
            _ = self.ceilings  # before the first trial, which a failure would lose
            search.put_back(first)
        start = seconds()  # the budget excludes the start of the device and its ceilings
        since = start
        queue = CompileQueue(
            search, search, self._start_compiler, least_ahead(options.sharing, search.remaining), in_one_transaction
        )
        fastest_us = min((one.median_us for one in search.prior.contenders), default=None)
        ahead: CompiledCandidate | None = None  # the candidate whose request was sent ahead

        def ask_ahead() -> bool:
            nonlocal ahead
            if ahead is None and not search.is_over and (queued := queue.take_compiled()) is not None:
                ahead = self._trial_maker.prepare(*queued, fastest_us)
                self._trial_maker.ask_ahead(ahead)
                return True
            return False

        def between_launches() -> bool:
            return search.update_strategy() or ask_ahead() or idle_work() or queue.step()

        try:
            for trials in count():
                budget = options.budget_seconds
                is_spent = budget is not None and search.prior.seconds + seconds() - start >= budget
                if is_spent and trials >= options.least_trials:
                    search.end(Why.BUDGET)
                compiled, ahead = ahead, None
                if compiled is None:
                    queued = (
                        None if search.is_over else self._next(queue, lambda: idle_work() or search.update_strategy())
                    )
                    if queued is None:
                        return
                    compiled = self._trial_maker.prepare(*queued, fastest_us)
                on_start(compiled.candidate)
                trial = self._trial_maker.run(
                    compiled, since=since, idle_work=no_idle_work if self.target.is_host else between_launches
                )
                since = seconds()
                search.note(result_of(trial))
                if self.target.is_host:
                    search.update_strategy()
                if trial.outcome is Outcome.OK and trial.measurement is not None:
                    fastest_us = min(trial.measurement.median_us, fastest_us or trial.measurement.median_us)
                yield trial
        finally:
            for compiling in queue.compiling:
                compiling.cancel()

    def _next(self, queue: CompileQueue, idle_work: Callable[[], object]) -> QueuedCandidate | None:
        """Wait for the next compiled candidate. On the host wait for all compilers, which would disturb its times."""
        self.phases.enter("compilers")
        if self.target.is_host:
            while queue.step():
                pass
            wait(list(queue.compiling))
        queued = queue.take(idle_work)
        self.phases.enter(BETWEEN_REQUESTS)
        return queued

    @cached_property
    def _trial_maker(self) -> TrialMaker:
        worker, ceilings = (lambda: self.worker), (lambda: self.ceilings)
        return TrialMaker(self.target, self.options, self._compilers, worker, ceilings, self.clock)

    def _start_compiler(self, candidate: Candidate) -> tuple[KernelSource, Compiled]:
        """Start the candidate's compiler; return its source and the future of its binary."""
        source = render(candidate.problem, candidate.config)
        return source, self._compilers.begin(source)

    def expect(self, problem: Problem) -> None:
        """Compile the support kernels for the problem's type: on a GPU in the background, on the host now."""
        self._compilers.begin_support(problem.dtype_name)
        if self.target.is_host:  # a compiler would disturb the host's ceilings
            self._compilers.support(problem.dtype_name)

    def compile_ahead(self, candidates: Sequence[Candidate]) -> list[Compiled]:
        """Start compilers for the first candidates of a later search; return their futures."""
        return [self._start_compiler(candidate)[1] for candidate in candidates]

    @cached_property
    def vendor(self) -> VendorSchedule | None:
        """The schedule of the vendor's measurements; None if the vendor is left out, or on the host."""
        if not self.options.vendor or self.target.is_host:
            return None
        return VendorSchedule(lambda: self.worker.vendor(), self.target.identity.driver)

    def final(
        self, problem: Problem, prior: PriorTrials, also: Collection[str] = (), *, repeat: bool = False
    ) -> Final | FinalFailure | None:
        """Time the finalists and the configurations `also` in turns with the vendor; None if that was done before.

        With `repeat` it is done again, with the vendor if it was in the last final.
        """
        chosen, vendor = finalists(problem, prior, also), self.vendor if prior.vendor or not repeat else None
        if vendor is not None and not (chosen and vendor.is_wanted(problem)):
            vendor = None
        is_due = is_final_due([one for one, _ in chosen], prior, also)
        if not (is_due or repeat) and (vendor is None or not vendor.is_due(prior)):
            return None
        if chosen and not self.target.is_host:  # the full verification of a new winner needs both index widths
            for source in by_width(problem, chosen[0][0].config):
                self._compilers.begin(source)
        found = self._final(problem, chosen, vendor)
        if vendor is None or isinstance(found, Final) or found.interrupted:
            return found
        without = self._final(problem, chosen, None)
        if isinstance(without, Final):  # so the vendor failed
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
        """Verify the configuration's kernel in full with both index widths; outcome OK if every call is right."""
        extent = EMULATED if self.target.is_host else ON_GPU
        seed = trial_seed(self.options.seed, problem, f"{config.text} in full")
        texts: list[Text] = [(source, None) for source in by_width(problem, config)]
        named = [f"{bits}-bit indices" for bits in INDEX_BITS]
        watching = self._watching if extent.watched_products else None
        if isinstance(watching, CompileFailure):
            return AttemptResult(watching.outcome, f"with races watched: {watching.detail}")
        if watching is not None:  # with one index width only: the accesses are the same with the other
            texts.append((texts[0][0], watching))
            named.append("races watched")
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
        """Return the toolchain that compiles a kernel with race detection; None if the host's compiler lacks it."""
        watching = self.target.watching
        if watching is None:
            return None
        binary = self._compilers.begin_text(WATCHED_SAMPLE, "sample", (), watching).result()
        if isinstance(binary, Binary):
            return watching
        return None if binary.outcome is Outcome.COMPILE_FAILED else binary

    def _are_whole(self, before: tuple[object, ...], texts: Sequence[Text]) -> bool:
        """Return whether the cache still holds these binaries in the files of `before`; if not, end the worker."""
        if self._compilers.are_whole(before, texts):
            return True
        self.worker.close()
        return False


def _codes_of(entries: Sequence[Entry]) -> str | None:
    """Return the digests of these binaries' machine code; None if the cache has lost one."""
    try:
        return " ".join(machine_code_digest(Path(entry.path).read_bytes()) for entry in entries)
    except (OSError, ValueError):
        return None


def least_ahead(sharing: int, most: int | None) -> int:
    """Return the least number of candidates to compile ahead: enough for the compilers.

    If several runs share the machine, it is at most half of this run's share of the `most` remaining trials.
    """
    enough = cores(sharing) + 1
    return enough if most is None or sharing == 1 else max(1, min(enough, most // (2 * sharing)))


def by_width(problem: Problem, config: KernelConfig) -> list[KernelSource]:
    """Return the configuration's source for each index width."""
    return [replace(render(problem, config), defines=index_defines(bits)) for bits in INDEX_BITS]
