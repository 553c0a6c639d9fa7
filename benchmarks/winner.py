"""Find the fastest configuration for a cell, by a search within the benchmark's time limit."""

from __future__ import annotations

import math
import signal
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context

from benchmarks.cells import Cell
from tsm2_tune.errors import DeviceError
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.families import family_named
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.generator.space.guidelines import Guidelines
from tsm2_tune.generator.space.order import ordered
from tsm2_tune.generator.space.space import search_space
from tsm2_tune.tuner.compile.pool import cores
from tsm2_tune.tuner.packs.candidate_times import candidate_times_us
from tsm2_tune.tuner.results.trial import Final, Outcome, Verdict
from tsm2_tune.tuner.search.candidates import Search
from tsm2_tune.tuner.search.loop import Tuner
from tsm2_tune.tuner.search.resume import FinalCandidate, PriorTrials
from tsm2_tune.tuner.search.strategies.model import Model
from tsm2_tune.tuner.verify.operands import needed_bytes
from tsm2_tune.tuner.worker.child_process import die_with_parent

CELLS_AHEAD, CONFIGURATIONS_AHEAD = 3, 16  # cells, and configurations of each, compiled while a cell is measured
TRIALS_A_SECOND = 8  # upper bound: limits the configurations compiled for a short search
MOST_CONFIGURATIONS = 1000  # limit of a search: more than a minute of trials
CORES_A_PLANNER, MOST_PLANNERS = 4, 8  # the remaining cores compile
RESERVE_BYTES = 6 * 2**30  # for two contexts, their flush buffers and reports, and the kernels' workspaces


class Skipped(Exception):
    """The reason why a cell cannot be measured."""


@dataclass(frozen=True, slots=True)
class Prospects:
    """The configurations to try for a cell: the most promising of those that the rules keep, in order."""

    problem: Problem
    kept: int
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True)
class Winner:
    """The fastest configuration with correct results, and counts of the search."""

    config: KernelConfig
    verdict: Verdict  # result of the verification in its trial
    kept: int  # number of configurations that the rules keep
    outcomes: dict[str, int]  # outcome -> number of trials


@contextmanager
def planners() -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of processes that plan searches, about a second each, while other searches run."""
    count = max(1, min(cores() // CORES_A_PLANNER, MOST_PLANNERS))
    pool = ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=_start_planner)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _start_planner() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles Ctrl-C
    die_with_parent()


def planned(tuner: Tuner, cells: Iterable[Cell], pool: Executor) -> Iterator[tuple[Cell, Prospects | Skipped]]:
    """Yield each cell with the configurations to try, or with the reason to skip it.

    Meanwhile the pool plans later cells and their kernels are compiled. Raise DeviceError if a process of the pool
    has died.
    """
    try:
        yield from _planned(tuner, cells, pool)
    except BrokenExecutor:
        raise DeviceError(
            "a process that plans searches has died, perhaps for want of memory: run this again with --resume,"
            " the rows measured so far are in the file"
        ) from None


def _planned(tuner: Tuner, cells: Iterable[Cell], pool: Executor) -> Iterator[tuple[Cell, Prospects | Skipped]]:
    limits, budget = tuner.target.limits, tuner.options.budget_seconds
    count = CONFIGURATIONS_AHEAD if budget is None else min(math.ceil(TRIALS_A_SECOND * budget), CONFIGURATIONS_AHEAD)
    planning = deque((cell, pool.submit(plan, cell.problem, limits)) for cell in cells)
    ahead: deque[tuple[Cell, Prospects | Skipped]] = deque()
    while planning or ahead:
        while planning and len(ahead) <= CELLS_AHEAD:
            tuner.phases.enter("planning")
            cell, future = planning.popleft()
            try:
                prospects = prospects_of(cell.problem, limits, future)
            except Skipped as reason:
                ahead.append((cell, reason))
            else:
                tuner.compile_ahead(prospects.candidates[:count])
                ahead.append((cell, prospects))
        yield ahead.popleft()


def plan(problem: Problem, limits: DeviceLimits) -> tuple[int, tuple[KernelConfig, ...]]:
    """Return how many configurations the rules keep, and the first of them in the order of the search.

    Raise Skipped if there are none, or if A, B and C do not fit in the device's memory.
    """
    needed, room = needed_bytes(problem), room_bytes(limits)
    if needed > room:
        raise Skipped(f"needs {needed / 2**30:.1f} GiB of device memory, of which {room / 2**30:.1f} GiB can be had")
    space = search_space(problem, limits)
    if not space.families:
        raise Skipped("no kernel family computes this product")
    if not space.kept:
        raise Skipped(f"no configuration left of the {space.total} in {', '.join(space.families)}")
    first = ordered(space, 0, candidate_times_us)[:MOST_CONFIGURATIONS]
    return len(space.kept), tuple(candidate.config for candidate in first)


def prospects_of(
    problem: Problem, limits: DeviceLimits, planning: Future[tuple[int, tuple[KernelConfig, ...]]]
) -> Prospects:
    """Return the planned configurations as candidates: a planning process returns only configurations.

    Raise Skipped if the planning process did.
    """
    kept, configs = planning.result()
    candidates = (Candidate(family_named(c.family), c, problem, limits, Guidelines()) for c in configs)
    return Prospects(problem, kept, tuple(candidates))


def tuned(tuner: Tuner, prospects: Prospects) -> Winner:
    """Return the winner of a search. Its finalists are measured again in turns.

    Raise Skipped if there is no winner.
    """
    problem = prospects.problem
    outcomes: Counter[str] = Counter()
    medians: list[tuple[KernelConfig, float]] = []
    verdicts: dict[KernelConfig, Verdict] = {}
    try:
        strategy, options = Model(prospects.candidates, late=not tuner.target.is_host), tuner.options
        search = Search(strategy, budget_seconds=options.budget_seconds, least=options.least_trials)
        for trial in tuner.tune(search):
            outcomes[trial.outcome.value] += 1
            if trial.outcome is Outcome.OK and trial.measurement is not None and trial.verdict is not None:
                medians.append((trial.config, trial.measurement.median_us))
                verdicts[trial.config] = trial.verdict
        final = tuner.final(problem, past(medians)) if medians else None
    except DeviceError as error:
        raise Skipped(str(error)) from None
    if not medians:
        raise Skipped(f"no configuration ran and was right: {dict(outcomes)}")
    if isinstance(final, Final):
        ranking = [(config, one) for config, one in final.measurements if one.cache is tuner.cache]
        medians = [(config, one.median_us) for config, one in ranking]
    # The worker process holds operands: free them if this process lacks memory for its own.
    if 2 * needed_bytes(problem) > room_bytes(tuner.target.limits):
        tuner.worker.release()
    config, _ = min(medians, key=lambda item: (item[1], item[0].text))
    return Winner(config, verdicts[config], prospects.kept, dict(outcomes))


def past(medians: list[tuple[KernelConfig, float]] | None = None) -> PriorTrials:
    """Return prior trials that contain only these finalists."""
    contenders = tuple(FinalCandidate(config, median_us) for config, median_us in medians or ())
    return PriorTrials(frozenset(), 0.0, contenders, frozenset())


def room_bytes(limits: DeviceLimits) -> int:
    """Return the bytes of device memory for operands."""
    return max(limits.memory_bytes - RESERVE_BYTES, 0)
