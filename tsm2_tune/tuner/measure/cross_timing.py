"""Measure kernels at shapes that they did not win.

A search times a kernel at the shape that it won, and seldom at others. An export predicts a kernel's time at untuned
shapes from its measured times, so more measured shapes make a better prediction. Three kinds of pairs of a kernel and
a shape are measured:

- each winner's kernel at the nearest other tuned shapes,
- kernels that planning suggests for shapes between the tuned ones, at the nearest tuned shapes,
- kernels of an export wherever they are predicted to be nearly the fastest, at tuned shapes and between them, where
  the vendor is measured too. A wrong prediction there would lead to a wrong choice.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby

from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.families import family_named
from tsm2_tune.generator.predict.expected_time import expected_us
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.generator.space.intermediate_shapes import kernels_between
from tsm2_tune.tuner.export.kernel_sets.intermediate_winners import MEASURED, rows_between
from tsm2_tune.tuner.export.kernel_sets.losses import Comparable
from tsm2_tune.tuner.export.kernel_sets.near_winners import Contender, contending, unsearched_between
from tsm2_tune.tuner.export.scale_launch import configuration_for, distance
from tsm2_tune.tuner.results.records import BestRow
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial_summaries import CurrentTrial
from tsm2_tune.tuner.runs.events import PairMeasured, ProblemEvent, VendorLeftOut, WinnerVerified
from tsm2_tune.tuner.runs.leases.configurations import Claims
from tsm2_tune.tuner.search import fixed_list, session
from tsm2_tune.tuner.search.loop import Tuner
from tsm2_tune.tuner.search.resume import Retries
from tsm2_tune.tuner.verify.operands import needed_bytes

MOST_SHAPES = 12  # a winner's kernel is measured at so many of the nearest tuned shapes
MOST_BETWEEN = 6  # the same for a kernel that is planned for shapes between the tuned ones
SOONER = 0.9  # measure a kernel again with another launch if that is predicted to take less than this of its time
ABSURD = 20.0  # skip a kernel that is predicted to take this many times as long as the shape's winner


Event = ProblemEvent | PairMeasured
Kernels = dict[str, dict[Problem, KernelConfig]]  # kernel's text -> shape -> the configuration with its launch there


@dataclass(frozen=True, slots=True)
class Group:
    """Tuned shapes of one element type and op, whose winners come from the same compiler as this run's kernels."""

    won: Kernels  # winners' kernels, at the shapes that they won
    between: Kernels  # kernels planned for shapes between the tuned ones, at those shapes
    winners: dict[Problem, CurrentTrial]
    known: dict[Problem, dict[str, float]]  # shape -> kernel's text -> its least measured time
    unsettled: frozenset[Problem]  # the winner lacks a final and the full verification, since its run was stopped

    def missing(self, asked: frozenset[Problem]) -> Iterator[tuple[str, Problem]]:
        """Yield pairs of a kernel and a nearby shape at which it has no time."""
        for kernel, problem in self._nearest():
            if self.is_missing(kernel, problem, asked):
                yield kernel, problem

    def is_missing(
        self, kernel: str, problem: Problem, asked: frozenset[Problem], expected_us: float = math.inf
    ) -> bool:
        """Return whether the kernel is to be measured at the shape.

        It is if it has no time there, or if another launch is predicted to be much faster (`expected_us`). The shape,
        or one that the kernel won, must be in `asked`. For a kernel that won nothing, at a shape between tuned ones,
        any shape of the group in `asked` is enough.
        """
        known_us = self.known.get(problem, {}).get(kernel)
        if problem not in self.known or (known_us is not None and expected_us >= SOONER * known_us):
            return False
        if problem in self.winners or kernel in self.won:
            return problem in asked or not asked.isdisjoint(self.won.get(kernel, ()))
        return not asked.isdisjoint(self.winners)

    def started(self, kernel: str) -> dict[Problem, KernelConfig]:
        """Return the kernel's configurations at the shapes that it won or is planned for; {} for other kernels."""
        return self.won.get(kernel) or self.between.get(kernel, {})

    def _nearest(self) -> Iterator[tuple[str, Problem]]:
        """Yield each kernel with the tuned shapes that are nearest to its own."""
        most = [(self.won, MOST_SHAPES), (self.between, MOST_BETWEEN)]
        for kernel, at, count in ((kernel, at, count) for of, count in most for kernel, at in sorted(of.items())):
            others = (problem for problem in self.winners if problem not in at)
            nearest = sorted(others, key=lambda one: (min(distance(one, own) for own in at), one))
            yield from ((kernel, problem) for problem in nearest[:count])


@dataclass(frozen=True, slots=True)
class CrossTiming:
    """Cross timing of the problems in `asked`, with one another and with other tuned shapes of their type and op.

    Each pair is an ordinary trial. The limits on trials and seconds of a search do not apply.
    """

    asked: frozenset[Problem]
    tuner: Tuner
    store: Store
    families: Collection[str] = ()  # only kernels of these families; empty: of all
    started_at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    _tried_here: dict[tuple[Problem, str], bool] = field(default_factory=dict)  # this run's pairs -> whether done
    _plans: dict[tuple[Problem, ...], Kernels] = field(default_factory=dict)  # tuned shapes -> kernels between them

    def events(self) -> Iterator[Event]:
        """Measure the missing pairs. Yield each event after it is stored; nothing if no pair is missing."""
        groups = list(self._groups())
        unsettled = sorted(problem for group in groups for problem in group.unsettled - self.asked)
        due = self._due(groups)
        kinds = [next(iter(group.winners)) for group in groups if group.winners]
        nothing = not due and not unsettled and not any(map(self._contending, kinds))
        if nothing and not any(map(self._unsettled_between, kinds)) and not self._unverified():
            return
        with unbounded(self.tuner), self.store.claims(self.tuner.target.identity.name) as claims:
            for problem in unsettled:
                yield from self._settled(self._session(problem, (), claims))
            if unsettled:
                due = self._due(list(self._groups()))  # winners may have changed
            yield from self._tried(due, claims)
            for kind in kinds:
                yield from self._contended(kind, claims)
            yield from self._verified()

    def _contended(self, kind: Problem, claims: Claims) -> Iterator[Event]:
        """Try kernels of this element type and op that are predicted to be nearly the fastest, until none is untried.

        Then run the finals at shapes between tuned ones.
        """
        while due := self._contending(kind):  # a time changes what is expected elsewhere
            yield from self._tried(due, claims)
        here = (problem for problem, _ in self._tried_here if problem.dtype_name == kind.dtype_name)
        alike = dict.fromkeys(problem for problem in here if problem.op == kind.op)
        searched = self._searched([kind])
        tried = [problem for problem in alike if problem not in searched]
        for problem in dict.fromkeys([*self._unsettled_between(kind), *tried]):
            yield from self._settled(self._session(problem, (), claims, is_between=True))

    def _searched(self, alike: Iterable[Problem]) -> frozenset[Problem]:
        """Return the shapes of the same types and ops at which a search has trials."""
        device, cache = self.tuner.target.identity.name, self.tuner.cache
        kinds = {(problem.dtype_name, problem.op): problem for problem in alike}
        return frozenset().union(*(self.store.searched(device, cache, kind) for kind in kinds.values()))

    def _unsettled_between(self, kind: Problem) -> list[Problem]:
        """Return the shapes between tuned ones without a final, or without the vendor in it if that is wanted."""
        device, cache, vendor = self.tuner.target.identity.name, self.tuner.cache, self.tuner.options.vendor
        rows = self.store.best(device=device, cache=cache, alike=kind, between=True)
        return [
            row.problem for row in rows if not row.stale and (row.round == 0 or (vendor and row.vendor_us is None))
        ]

    def _tried(self, due: Mapping[Problem, Sequence[Candidate]], claims: Claims) -> Iterator[Event]:
        """Try the candidates at their shapes, and run finals at tuned shapes if they are due."""
        pairs = [(problem, one.config.text) for problem, candidates in due.items() for one in candidates]
        self._tried_here.update(dict.fromkeys(pairs, False))
        if due:
            yield self._progress()
        searched = self._searched(due)
        for problem, candidates in due.items():
            turn = self._session(problem, candidates, claims, is_between=problem not in searched)
            for event in fixed_list.tried(turn, candidates):
                self._tried_here[problem, event.trial.config.text] = True
                yield event
                yield self._progress()
            self._tried_here.update(dict.fromkeys([(problem, one.config.text) for one in candidates], True))
            yield self._progress()  # another run may have tried some of them
            if not turn.is_between:
                yield from self._settled(turn)

    def _progress(self) -> PairMeasured:
        return PairMeasured(sum(self._tried_here.values()), len(self._tried_here))

    def _groups(self) -> Iterator[Group]:
        """Yield the groups of at least two shapes with a problem of this run."""
        rows = sorted(self._winners(), key=lambda row: (row.dtype, row.op))
        for _, of_group in groupby(rows, key=lambda row: (row.dtype, row.op)):
            among = list(of_group)
            if len(among) > 1 and any(row.problem in self.asked for row in among):
                yield self._group(among)

    def _winners(self, problem: Problem | None = None, alike: Problem | None = None) -> list[BestRow]:
        """Return the current winners of tuned shapes."""
        device, cache = self.tuner.target.identity.name, self.tuner.cache
        found = self.store.best(device=device, problem=problem, alike=alike, cache=cache)
        return [row for row in found if not row.stale]

    def _group(self, rows: Sequence[BestRow]) -> Group:
        tuner, unsettled = self.tuner, {row.problem for row in rows if _is_unsettled(row)}
        tuned = [row.problem for row in rows]
        planned = self._planned(tuned)
        between_shapes = [] if self.tuner.target.is_host else unsearched_between(self.store, rows)
        counts = Comparable(tuner.basis)
        won, winners, known = Kernels(), dict[Problem, CurrentTrial](), {}
        for row in rows:
            problem = row.problem
            right = {one.id: one for one in self.store.current(row.device, problem) if counts(one)}
            winner = right.get(row.trial_id)
            if winner is not None:  # else another compiler made it, and a new trial beside it would make it stale
                won.setdefault(winner.config.kernel_text, {})[problem] = winner.config
                winners[problem] = winner
                known[problem] = _fastest(right.values())
        for problem in between_shapes:
            there = self.store.current(tuner.target.identity.name, problem)
            known[problem] = _fastest(filter(counts, there))
        between = {kernel: at for kernel, at in planned.items() if kernel not in won}
        return Group(won, between, winners, known, frozenset(filter(unsettled.__contains__, winners)))

    def _planned(self, problems: Collection[Problem]) -> Kernels:
        """Return kernels for shapes between tuned ones; none on the host or for few tuned shapes, as in exports."""
        if self.tuner.target.is_host or len(problems) < MEASURED:
            return {}
        key = tuple(problems)
        if key not in self._plans:
            self._plans[key] = kernels_between(problems, self.tuner.target.limits)
        return self._plans[key]

    def _due(self, groups: Sequence[Group]) -> dict[Problem, list[Candidate]]:
        """Return the untried candidates at each shape, from the nearest kernels."""
        missing = ((group, *pair) for group in groups for pair in group.missing(self.asked))
        return self._untried_at(
            (problem, candidate)
            for group, kernel, problem in missing
            if (candidate := self._candidate(group.started(kernel), problem)) is not None
            and expected_us(candidate) <= ABSURD * expected_us(self._winner(group, problem))
        )

    def _contending(self, kind: Problem) -> dict[Problem, list[Candidate]]:
        """Return the untried candidates of this element type and op that are predicted to be nearly the fastest."""
        winners = self._winners(alike=kind)
        if self.tuner.target.is_host or len(winners) < 2:
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
        """Return the candidate of the kernel at the shape, or None if it cannot run there.

        The launch has `blocks` blocks, or follows from `started`, the kernel's configurations at its own shapes.
        Other measured launches do not count, so a repeated run tries the same candidates. Return None also if k
        exceeds the depth that the kernel computes in one pass, and did not at its own shapes: other kernels are
        better there.
        """
        limits = self.tuner.target.limits
        config = configuration_for(started, problem, limits, blocks)
        if config is None or (self.families and config.family not in self.families):
            return None
        deepest = family_named(config.family).deepest(config) or math.inf
        if problem.k > deepest and all(one.k <= deepest for one in started):
            return None
        candidate = fixed_list.candidate_of(config, problem, limits)
        return None if _memory_bytes(candidate) > limits.memory_bytes else candidate

    def _winner(self, group: Group, problem: Problem) -> Candidate:
        return fixed_list.candidate_of(group.winners[problem].config, problem, self.tuner.target.limits)

    def _untried(self, problem: Problem, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return the candidates without a stored trial that counts as tried."""
        tuner = self.tuner
        families = {one.config.family for one in candidates}
        self.store.supersede(tuner.target.identity.name, problem, tuner.basis)
        retries = session.retries_of(self.store, tuner, problem, families)
        prior = session.prior_trials(self.store, tuner, problem, families, retries)
        return [one for one in candidates if one.config.text not in prior.tried]

    def _session(
        self, problem: Problem, candidates: Sequence[Candidate], claims: Claims, *, is_between: bool = False
    ) -> session.ProblemSession:
        families = {one.config.family for one in candidates}
        return fixed_list.problem_session(
            problem, families, self.tuner, self.store, claims, self.started_at, is_between=is_between
        )

    def _unverified(self) -> list[BestRow]:
        """Return the rows that an export adds for shapes between tuned ones and that lack the full verification."""
        kinds = {(problem.dtype_name, problem.op) for problem in self.asked}
        winners = [row for row in self._winners() if (row.dtype, row.op) in kinds]
        return [row for row in rows_between(self.store, winners) if not row.verified_in_full]

    def _verified(self) -> Iterator[WinnerVerified]:
        """Verify these rows in full. If one is wrong, another may take its place, which is verified next."""
        done = set[int]()
        while rows := [row for row in self._unverified() if row.trial_id not in done]:
            for row in rows:
                done.add(row.trial_id)
                event = session.verified(row, self.tuner, self.store)
                if event is not None:
                    yield event

    def _settled(self, turn: session.ProblemSession) -> Iterator[Event]:
        """Yield the events of a due final and of its winner's full verification.

        Finals of a shape outside `asked` are left to another run, with its options, unless a new pair leads there.
        """
        problem = turn.space.problem
        is_due = turn.is_between or any(map(_is_unsettled, self._winners(problem=problem)))
        if problem not in self.asked and not is_due:
            return
        for event in turn.settled(Retries(self.tuner.options.limits)):
            if not isinstance(event, VendorLeftOut) or event.problem not in {None, *self.asked}:
                yield event  # else the problem's own search has yielded it


def _fastest(trials: Iterable[CurrentTrial]) -> dict[str, float]:
    """Return the least time of each kernel, by its text."""
    found: dict[str, float] = {}
    for one in trials:
        text, us = one.config.kernel_text, math.inf if one.median_us is None else one.median_us
        found[text] = min(us, found.get(text, math.inf))
    return found


@contextmanager
def unbounded(tuner: Tuner) -> Iterator[None]:
    """Have the tuner ignore its limits on trials and seconds in the body."""
    options = tuner.options
    tuner.options = options.unbounded
    try:
        yield
    finally:
        tuner.options = options


def _is_unsettled(row: BestRow) -> bool:
    """Return whether the row has neither a final nor a full verification."""
    return row.round == 0 and not row.verified_in_full


def _memory_bytes(candidate: Candidate) -> int:
    """Return about how much device memory a trial of the candidate needs."""
    problem = candidate.problem
    sums = candidate.launch.partial_elements(problem.m, problem.n)
    return needed_bytes(problem) + sums * problem.dtype.sum.element_bytes
