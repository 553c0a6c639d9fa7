"""The loop: candidates in order, each compiled, verified, measured and yielded as a Trial."""

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
    """One device for the length of a run: its worker, its ceilings, its compiler. Use as a context manager.

    `phases` says where the time goes.

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
        """In which trials are timed, and by which they are ranked."""
        return self.target.cache(self.options.cache)

    @property
    def basis(self) -> str:
        """The basis of this run's trials."""
        return self.target.basis(self.cache)

    @property
    def ceilings(self) -> Ceilings:
        """Measured once a run, when first needed."""
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
        """Try the candidates of one problem that its search gives, until that or the budget ends it.

        On a GPU those wait that are not compiled yet while others are. Each is claimed before it is compiled, several
        `in_one_transaction`, and `on_start` is called when its trial begins. A trial that the machine interrupted
        twice says nothing of its kernel.

        While a kernel runs on a GPU, the search learns of the trial before, the worker is asked for the next, more
        are made ready, and what `idle_work` does is done.
        """
        options, seconds = self.options, self.clock.seconds
        self.phases.enter(BETWEEN_REQUESTS)
        first = next(search, None)
        if first is not None:
            if not self.target.is_host:  # where a compiler would disturb the ceilings
                self.compile_ahead([first])
            _ = self.ceilings  # before the first trial, which would be lost if measuring them failed
            search.put_back(first)
        start = seconds()  # the budget is for trials: a device starts and is measured once for all problems
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
        """The next one, when it is compiled; on a host when all are, as a compiler would disturb its times."""
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
        """The candidate's text, and its binary to come."""
        source = render(candidate.problem, candidate.config)
        return source, self._compilers.begin(source)

    def expect(self, problem: Problem) -> None:
        """Compile what verifies results of its type: on a GPU while other work is done, on a host before that."""
        self._compilers.begin_support(problem.dtype_name)
        if self.target.is_host:  # where a compiler would disturb the ceilings
            self._compilers.support(problem.dtype_name)

    def compile_ahead(self, candidates: Sequence[Candidate]) -> list[Compiled]:
        """Start compilers for the first candidates of a search to come; returns what can be waited for."""
        return [self._start_compiler(candidate)[1] for candidate in candidates]

    @cached_property
    def vendor(self) -> VendorSchedule | None:
        """When finals measure the vendor too; None where it is left out, and on a host, which has none."""
        if not self.options.vendor or self.target.is_host:
            return None
        return VendorSchedule(lambda: self.worker.vendor(), self.target.identity.driver)

    def final(
        self, problem: Problem, prior: PriorTrials, also: Collection[str] = (), *, repeat: bool = False
    ) -> Final | FinalFailure | None:
        """Measure finalists, and what `also` spells, again, in turns with the vendor; None where it was done.

        `repeat`: also then, with the vendor where it was beside them.
        """
        chosen, vendor = finalists(problem, prior, also), self.vendor if prior.vendor or not repeat else None
        if vendor is not None and not (chosen and vendor.is_wanted(problem)):
            vendor = None
        is_due = is_final_due([one for one, _ in chosen], prior, also)
        if not (is_due or repeat) and (vendor is None or not vendor.is_due(prior)):
            return None
        if chosen and not self.target.is_host:  # where it is not compiled meanwhile, a new winner waits for that
            for source in by_width(problem, chosen[0][0].config):
                self._compilers.begin(source)
        found = self._final(problem, chosen, vendor)
        if vendor is None or isinstance(found, Final) or found.interrupted:
            return found
        without = self._final(problem, chosen, None)
        if isinstance(without, Final):  # so it was the vendor that failed
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
        """Verify the configuration's kernel for both widths of index; outcome OK where every call was right."""
        extent = EMULATED if self.target.is_host else ON_GPU
        seed = trial_seed(self.options.seed, problem, f"{config.text} in full")
        texts: list[Text] = [(source, None) for source in by_width(problem, config)]
        named = [f"{bits}-bit indices" for bits in INDEX_BITS]
        watching = self._watching if extent.watched_products else None
        if isinstance(watching, CompileFailure):
            return AttemptResult(watching.outcome, f"with races watched: {watching.detail}")
        if watching is not None:  # by one width of index: threads touch the same by the other
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
        """Return whether the cache holds what was compiled, in the files that were there before: else it does again
        now.

        If not, the worker that has them is ended.
        """
        if self._compilers.are_whole(before, texts):
            return True
        self.worker.close()
        return False


def _codes_of(entries: Sequence[Entry]) -> str | None:
    """Return the digests of these binaries' machine code; None where the cache has lost one."""
    try:
        return " ".join(machine_code_digest(Path(entry.path).read_bytes()) for entry in entries)
    except (OSError, ValueError):
        return None


def least_ahead(sharing: int, most: int | None) -> int:
    """Return the trials that are claimed and compiled ahead at the least, twice as many at the most: enough for the
    compilers, but no more than a run's part of the `most` that are left, where several share the machine.
    """
    enough = cores(sharing) + 1
    return enough if most is None or sharing == 1 else max(1, min(enough, most // (2 * sharing)))


def by_width(problem: Problem, config: KernelConfig) -> list[KernelSource]:
    """The configuration's text, to be compiled for each width of index."""
    return [replace(render(problem, config), defines=index_defines(bits)) for bits in INDEX_BITS]
