"""Cross timing: timing of kernels at shapes at which another kernel is the fastest.

A shape is tuned if a search was run for it. Its winner is the fastest kernel. A search times a kernel at the shape of
the search only. An exported module predicts a kernel's time at other shapes from its measured times, so more measured
shapes improve the prediction. These kernels are timed:

- each winner, at the tuned shapes nearest to its own shape. For batches, only this;
- for shapes between the tuned shapes, the first kernels that a search there would try. They are timed at the nearest
  tuned shapes;
- exported kernels, at every shape at which they are predicted to be nearly the fastest: tuned shapes and shapes
  between them. A wrong prediction at such a shape would lead to a wrong choice of kernel. cuBLAS is also timed at the
  shapes between tuned shapes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby

import numpy as np

from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.families import family_named
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.generator.space.intermediate_shapes import kernels_between
from tsm2_tune.tuner.export.kernel_sets.intermediate_winners import MEASURED, rows_between
from tsm2_tune.tuner.export.kernel_sets.losses import Comparable
from tsm2_tune.tuner.export.kernel_sets.near_winners import Contender, contending, unsearched_between
from tsm2_tune.tuner.export.scale_launch import configuration_for, distance
from tsm2_tune.tuner.packs.candidate_times import candidate_times_us
from tsm2_tune.tuner.results.best_view import BestRow
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial_summaries import CurrentTrial
from tsm2_tune.tuner.runs.events import PairMeasured, ProblemEvent, VendorLeftOut, WinnerVerified
from tsm2_tune.tuner.search import session
from tsm2_tune.tuner.search.executor import Executor
from tsm2_tune.tuner.verify.operands import needed_bytes

MOST_SHAPES = 12  # number of nearest tuned shapes at which a winner is timed
MOST_BETWEEN = 6  # number for a kernel that is planned for shapes between tuned shapes
SOONER = 0.9  # time another launch of a kernel if its predicted time is below this share of the measured time
ABSURD = 20.0  # skip a kernel whose predicted time exceeds this multiple of the winner's time


Event = ProblemEvent | PairMeasured
Hold = Callable[[Problem], AbstractContextManager[bool]]  # leases a problem; false if another device or run has it
Kernels = dict[str, dict[Problem, KernelConfig]]  # kernel's text -> shape -> configuration for the shape


@dataclass(frozen=True, slots=True)
class Group:
    """The tuned shapes of one element type and op, with their winners and measured times.

    Single products and batches are in separate groups.
    """

    won: Kernels  # winners, at the shapes at which they are the fastest
    between: Kernels  # kernels planned for shapes between tuned shapes, at the planned shapes
    winners: dict[Problem, CurrentTrial]
    known: dict[Problem, dict[str, float]]  # shape -> kernel's text -> least measured time in microseconds
    unsettled: frozenset[Problem]  # the winner has neither a final nor a full verification

    def missing(self, asked: frozenset[Problem]) -> Iterator[tuple[str, Problem]]:
        """Yield pairs of a kernel and a nearby shape at which the kernel has no measured time."""
        for kernel, problem in self._nearest():
            if self.is_missing(kernel, problem, asked):
                yield kernel, problem

    def is_missing(
        self, kernel: str, problem: Problem, asked: frozenset[Problem], expected_us: float = math.inf
    ) -> bool:
        """Return whether to time the kernel at the shape.

        Return False if the kernel has a measured time at the shape, unless `expected_us`, the predicted time of
        another launch, is much shorter. Return False also unless `asked` contains the shape or a shape that the
        kernel won. For a kernel that won no shape, at a shape between tuned shapes, it is enough that `asked`
        contains any tuned shape of this group.
        """
        known_us = self.known.get(problem, {}).get(kernel)
        if problem not in self.known or (known_us is not None and expected_us >= SOONER * known_us):
            return False
        if problem in self.winners or kernel in self.won:
            return problem in asked or not asked.isdisjoint(self.won.get(kernel, ()))
        return not asked.isdisjoint(self.winners)

    def started(self, kernel: str) -> dict[Problem, KernelConfig]:
        """Return the kernel's configuration for each shape that it won; if it won none, for each planned shape."""
        return self.won.get(kernel) or self.between.get(kernel, {})

    def _nearest(self) -> Iterator[tuple[str, Problem]]:
        """Yield pairs of a kernel and a tuned shape, for the tuned shapes nearest to the kernel's own shapes."""
        most = [(self.won, MOST_SHAPES), (self.between, MOST_BETWEEN)]
        for kernel, at, count in ((kernel, at, count) for of, count in most for kernel, at in sorted(of.items())):
            others = (problem for problem in self.winners if problem not in at)
            nearest = sorted(others, key=lambda one: (min(distance(one, own) for own in at), one))
            yield from ((kernel, problem) for problem in nearest[:count])


@dataclass(frozen=True, slots=True)
class CrossTiming:
    """Cross timing: kernels are timed at shapes at which another kernel is the fastest.

    The fastest kernels of the problems in `asked` are timed at other tuned shapes, and kernels of other shapes are
    timed at the problems in `asked`. Each pair of a kernel and a shape is compiled, verified, timed and stored like
    any trial. The limits on trials and seconds, which end a search, do not apply. A shape at which another device or
    run is at work is skipped.
    """

    asked: frozenset[Problem]
    tuner: Executor
    store: Store
    families: Collection[str] = ()  # kernel families to time; empty: all
    hold: Hold = lambda _: nullcontext(True)
    started_at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    _tried_here: dict[tuple[Problem, str], bool] = field(default_factory=dict)  # (shape, kernel) -> whether done
    _plans: dict[tuple[Problem, ...], Kernels] = field(default_factory=dict)  # tuned shapes -> planned kernels

    def events(self) -> Generator[Event, None, None]:
        """Time kernels at shapes at which they have no time yet. Yield each event after its result is stored."""
        groups = list(self._groups())
        unsettled = sorted(problem for group in groups for problem in group.unsettled - self.asked)
        due = self._due(groups)
        kinds = [next(iter(group.winners)) for group in groups if group.winners]
        nothing = not due and not unsettled and not any(map(self._contending, kinds))
        if nothing and not any(map(self._unsettled_between, kinds)) and not self._unverified():
            return
        with unbounded(self.tuner):
            for problem in unsettled:
                yield from self._settled(problem)
            if unsettled:
                due = self._due(list(self._groups()))  # winners may have changed
            yield from self._tried(due)
            for kind in kinds:
                yield from self._contended(kind)
            yield from self._verified()

    def _contended(self, kind: Problem) -> Iterator[Event]:
        """Time the kernels that are predicted to be nearly the fastest for problems of the same kind as `kind`."""
        while due := self._contending(kind):  # new times change the predictions
            yield from self._tried(due)
        here = (problem for problem, _ in self._tried_here)
        alike = dict.fromkeys(problem for problem in here if _kind(problem) == _kind(kind))
        searched = self._searched([kind])
        tried = [problem for problem in alike if problem not in searched]
        for problem in dict.fromkeys([*self._unsettled_between(kind), *tried]):
            yield from self._settled(problem, is_between=True)

    def _searched(self, alike: Iterable[Problem]) -> frozenset[Problem]:
        """Return the shapes for which a search has stored trials, of the kinds of the problems in `alike`."""
        device, cache = self.tuner.target.identity.name, self.tuner.cache
        kinds = {_kind(problem): problem for problem in alike}
        return frozenset().union(*(self.store.searched(device, cache, kind) for kind in kinds.values()))

    def _unsettled_between(self, kind: Problem) -> list[Problem]:
        """Return the shapes between tuned shapes that need a final (repeated timing of the fastest kernels)."""
        device, cache, vendor = self.tuner.target.identity.name, self.tuner.cache, self.tuner.options.vendor
        rows = self.store.best(device=device, cache=cache, alike=kind, between=True)
        return [
            row.problem for row in rows if not row.stale and (row.round == 0 or (vendor and row.vendor_us is None))
        ]

    def _tried(self, due: Mapping[Problem, Sequence[Candidate]]) -> Iterator[Event]:
        """Try the candidates at their shapes. At each tuned shape, then run the shape's final if it is due."""
        pairs = [(problem, one.config.text) for problem, candidates in due.items() for one in candidates]
        self._tried_here.update(dict.fromkeys(pairs, False))
        if due:
            yield self._progress()
        searched = self._searched(due)
        for problem, candidates in due.items():
            is_between = problem not in searched
            with self.hold(problem) as is_ours:
                turn = self._session(problem, candidates, is_between=is_between) if is_ours else None
                for event in turn.listed(candidates) if turn is not None else ():
                    self._tried_here[problem, event.trial.config.text] = True
                    yield event
                    yield self._progress()
            self._tried_here.update(dict.fromkeys([(problem, one.config.text) for one in candidates], True))
            yield self._progress()  # counts candidates that another device tries
            if turn is not None and not is_between:
                yield from self._settled(problem)

    def _progress(self) -> PairMeasured:
        return PairMeasured(sum(self._tried_here.values()), len(self._tried_here))

    def _groups(self) -> Iterator[Group]:
        """Yield each group of at least two tuned shapes that contains a problem in `asked`."""
        rows = sorted(self._winners(), key=lambda row: _kind(row.problem))
        for _, of_group in groupby(rows, key=lambda row: _kind(row.problem)):
            among = list(of_group)
            if len(among) > 1 and any(row.problem in self.asked for row in among):
                yield self._group(among)

    def _winners(self, problem: Problem | None = None, alike: Problem | None = None) -> list[BestRow]:
        """Return the winners (fastest kernels) of tuned shapes, without winners whose code has changed."""
        device, cache = self.tuner.target.identity.name, self.tuner.cache
        found = self.store.best(device=device, problem=problem, alike=alike, cache=cache)
        return [row for row in found if not row.stale]

    def _group(self, rows: Sequence[BestRow]) -> Group:
        tuner, unsettled = self.tuner, {row.problem for row in rows if _is_unsettled(row)}
        tuned = [row.problem for row in rows]
        planned = self._planned(tuned)
        is_alone = self.tuner.target.is_host or tuned[0].is_batched
        between_shapes = [] if is_alone else unsearched_between(self.store, rows)
        counts = Comparable(tuner.basis)
        won, winners, known = Kernels(), dict[Problem, CurrentTrial](), {}
        for row in rows:
            problem = row.problem
            right = {one.id: one for one in self.store.current(row.device, problem) if counts(one)}
            winner = right.get(row.trial_id)
            if winner is not None:  # else it was compiled by another compiler: new trials would make it stale
                won.setdefault(winner.config.kernel_text, {})[problem] = winner.config
                winners[problem] = winner
                known[problem] = _fastest(right.values())
        for problem in between_shapes:
            there = self.store.current(tuner.target.identity.name, problem)
            known[problem] = _fastest(filter(counts, there))
        between = {kernel: at for kernel, at in planned.items() if kernel not in won}
        return Group(won, between, winners, known, frozenset(filter(unsettled.__contains__, winners)))

    def _planned(self, problems: Collection[Problem]) -> Kernels:
        """Return the first kernels that a search would try between tuned shapes."""
        key = tuple(problems)
        if self.tuner.target.is_host or key[0].is_batched or len(key) < MEASURED:
            return {}
        if key not in self._plans:
            self._plans[key] = kernels_between(problems, self.tuner.target.limits, candidate_times_us)
        return self._plans[key]

    def _due(self, groups: Sequence[Group]) -> dict[Problem, list[Candidate]]:
        """Return for each shape the candidates to try: kernels of nearby shapes that were not tried at this shape."""
        missing = ((group, *pair) for group in groups for pair in group.missing(self.asked))
        candidates = [
            (group, candidate)
            for group, kernel, problem in missing
            if (candidate := self._candidate(group.started(kernel), problem)) is not None
        ]
        winners = [self._winner(group, candidate.problem) for group, candidate in candidates]
        us, winners_us = np.split(candidate_times_us([*(one for _, one in candidates), *winners]), 2)
        return self._untried_at(
            (candidate.problem, candidate)
            for (_, candidate), is_absurd in zip(candidates, us > ABSURD * winners_us, strict=True)
            if not is_absurd
        )

    def _contending(self, kind: Problem) -> dict[Problem, list[Candidate]]:
        """Return for each shape the candidates to try: those that are predicted to be nearly the fastest there."""
        winners = self._winners(alike=kind)
        if self.tuner.target.is_host or kind.is_batched or len(winners) < 2:
            return {}
        group = self._group(winners)

        def candidate(one: Contender) -> Candidate | None:
            started = group.started(one.config.kernel_text) or {one.own: one.config}
            return self._candidate(started, one.at, one.blocks)

        def is_missing(one: Contender) -> bool:
            return group.is_missing(one.config.kernel_text, one.at, self.asked, one.us)

        found = contending(self.store, winners, lambda one: not is_missing(one) or candidate(one) is not None)
        pairs = ((one.at, candidate(one)) for one in found if is_missing(one))
        return self._untried_at(
            (problem, one)
            for problem, one in pairs
            if one is not None and (problem, one.config.text) not in self._tried_here
        )

    def _untried_at(self, pairs: Iterable[tuple[Problem, Candidate]]) -> dict[Problem, list[Candidate]]:
        found: dict[Problem, list[Candidate]] = {}
        for problem, candidate in pairs:
            found.setdefault(problem, []).append(candidate)
        untried = {problem: self._untried(problem, candidates) for problem, candidates in found.items()}
        return {problem: candidates for problem, candidates in untried.items() if candidates}

    def _candidate(
        self, started: Mapping[Problem, KernelConfig], problem: Problem, blocks: float | None = None
    ) -> Candidate | None:
        """Return the kernel's candidate for the shape; None if the kernel cannot run or is certainly slow there.

        `started` contains the kernel's configurations at its own shapes. The launch has about `blocks` thread blocks,
        by default as many as at the nearest of these shapes. A kernel is certainly slow if it needs several passes
        over k at the shape, but only one pass at each of its own shapes.
        """
        limits = self.tuner.target.limits
        config = configuration_for(started, problem, limits, blocks)
        if config is None or (self.families and config.family not in self.families):
            return None
        k_per_pass = family_named(config.family).block_plan(config, problem).k_per_pass or math.inf
        if problem.k > k_per_pass and all(one.k <= k_per_pass for one in started):
            return None
        candidate = session.candidate_of(config, problem, limits)
        return None if _memory_bytes(candidate) > limits.memory_bytes else candidate

    def _winner(self, group: Group, problem: Problem) -> Candidate:
        return session.candidate_of(group.winners[problem].config, problem, self.tuner.target.limits)

    def _untried(self, problem: Problem, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return the candidates without a stored trial. Trials that are to be retried do not count."""
        return self._session(problem, candidates).untried(candidates)

    def _session(
        self, problem: Problem, candidates: Sequence[Candidate], *, is_between: bool = False
    ) -> session.ProblemSession:
        families = {one.config.family for one in candidates}
        return session.problem_session(
            problem, families, self.tuner, self.store, self.started_at, is_between=is_between
        )

    def _unverified(self) -> list[BestRow]:
        """Return the kernels that an export adds for shapes between tuned shapes, if not yet verified in full."""
        kinds = {_kind(problem) for problem in self.asked}
        winners = [row for row in self._winners() if _kind(row.problem) in kinds]
        return [row for row in rows_between(self.store, winners) if not row.verified_in_full]

    def _verified(self) -> Iterator[WinnerVerified]:
        """Verify the kernels of `_unverified` in full. If one is wrong, verify the kernel that replaces it too."""
        done = set[int]()
        while rows := [row for row in self._unverified() if row.trial_id not in done]:
            for row in rows:
                done.add(row.trial_id)
                with self.hold(row.problem) as is_ours:
                    event = session.verified(row, self.tuner, self.store) if is_ours else None
                if event is not None:
                    yield event

    def _settled(self, problem: Problem, *, is_between: bool = False) -> Iterator[Event]:
        """Run the shape's final (repeated timing of its fastest kernels) if it is due, and verify its winner in full.

        If a tuned shape is not in `asked`, its final is due only if the fastest kernel has not taken part in a final
        yet.
        """
        is_due = is_between or any(map(_is_unsettled, self._winners(problem=problem)))
        if problem not in self.asked and not is_due:
            return
        with self.hold(problem) as is_ours:
            if is_ours:
                for event in self._session(problem, (), is_between=is_between).settled(self.tuner):
                    if not isinstance(event, VendorLeftOut) or event.problem not in {None, *self.asked}:
                        yield event  # else the search of the problem yielded this event before


def _fastest(trials: Iterable[CurrentTrial]) -> dict[str, float]:
    """Return the least median of each kernel in microseconds, by the kernel's text; inf without a time."""
    found: dict[str, float] = {}
    for one in trials:
        text, us = one.config.kernel_text, math.inf if one.median_us is None else one.median_us
        found[text] = min(us, found.get(text, math.inf))
    return found


@contextmanager
def unbounded(tuner: Executor) -> Iterator[None]:
    """Context manager in which the tuner has no limits on trials and seconds."""
    options = tuner.options
    tuner.options = options.unbounded
    try:
        yield
    finally:
        tuner.options = options


def _is_unsettled(row: BestRow) -> bool:
    """Return whether the winner has neither been in a final (repeated timing) nor been verified in full."""
    return row.round == 0 and not row.verified_in_full


def _kind(problem: Problem) -> tuple[str, str, bool]:
    """Return element type, op, and whether the problem is a batch. Kernels are timed at shapes of the same kind."""
    return problem.dtype_name, problem.op, problem.is_batched


def _memory_bytes(candidate: Candidate) -> int:
    """Return the approximate bytes of device memory that a trial of the candidate needs."""
    problem = candidate.problem
    sums = candidate.launch.partial_elements(problem.m, problem.n)
    return needed_bytes(problem) + sums * problem.dtype.sum.element_bytes
