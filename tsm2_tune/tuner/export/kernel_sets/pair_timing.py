"""Timing of kernels at tuned shapes, only where a time can change the smallest set of kernels.

A kernel without a time at a shape is assumed to be fast enough there. The smallest set of kernels under this
assumption is chosen. The missing times on which this set depends are measured. These steps are repeated until the set
depends on measured times only. Most pairs of a kernel and a shape are never measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Self

from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.scalars import plain
from tsm2_tune.tuner.device.lock import device_lock
from tsm2_tune.tuner.device.target import Target
from tsm2_tune.tuner.export.kernel_sets.losses import Known, Tuned
from tsm2_tune.tuner.export.kernel_sets.set_cover import Choice, fewest
from tsm2_tune.tuner.export.scale_launch import configuration_for
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Cache, Outcome
from tsm2_tune.tuner.runs.events import FinalFailure, ProblemEvent
from tsm2_tune.tuner.search import session
from tsm2_tune.tuner.search.loop import Tuner
from tsm2_tune.tuner.search.options import Options

UNKNOWN = 1e6  # cost of an unmeasured pair: large, so that a set uses few such pairs
MOST_TURNS = 3  # maximum number of finals of a shape

Pair = tuple[str, Problem]  # (kernel's text, shape)


@dataclass(frozen=True, slots=True)
@plain
class Narrowed:
    """Progress of the search for the fewest kernels."""

    kernels: int  # kernels that may suffice
    resting_on: int  # unmeasured pairs of a kernel and a shape that it uses

    def __str__(self) -> str:
        return f"candidate kernels: {self.kernels}; pairs to measure: {self.resting_on}"


Event = ProblemEvent | Narrowed


@dataclass(slots=True)
class Bench:
    """Context manager for measurements of an export on a device. The device is locked at the first measurement."""

    target: Target
    options: Options
    store: Store
    wait: Callable[[str], object] | None = None  # called with the reason while another run has locked the device
    started_at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    _stack: ExitStack = field(default_factory=ExitStack)
    _tuner: Tuner | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @property
    def basis(self) -> str:
        """The hash of compiler, flags and L2 state of the trials. Only times with equal hashes are comparable."""
        return self.target.basis(self.cache)

    @property
    def cache(self) -> Cache:
        """The L2 state in which trials are timed."""
        return self.target.cache(self.options.cache)

    def turn(self, tuned: Tuned, problem: Problem) -> session.ProblemSession:
        """Return a session that can try kernels of the families in `tuned` at the shape."""
        return session.problem_session(problem, tuned.families(), self.tuner(), self.store, self.started_at)

    def tuner(self) -> Tuner:
        """Return the device's tuner. The first call locks the device."""
        if self._tuner is None:
            self._stack.enter_context(device_lock(self.target, self.wait))
            self._tuner = self._stack.enter_context(Tuner(self.target, self.options))
        return self._tuner


@dataclass(slots=True)
class Search:
    """A search for the smallest set of kernels in which every tuned shape has a fast enough kernel.

    Only times that can change this set are measured.
    """

    tuned: Tuned
    bench: Bench
    least: int | None = None  # proven lower bound of the number of kernels
    _closed: set[Pair] = field(default_factory=set)  # pairs (kernel, shape) that need no more trials
    _unverified: set[Pair] = field(default_factory=set)  # pairs whose verification was interrupted
    _turns: Counter[Problem] = field(default_factory=Counter)

    def events(self) -> Iterator[Event]:
        """Measure the missing times, and yield each event after it is stored.

        After the last event `Tuned.selected` returns the chosen kernels.
        """
        tuned = self.tuned
        while True:
            known = tuned.candidates()
            choice = self._choice(known)
            if choice is None:
                return
            self.least = len(choice.kernels) if choice.is_proven else None
            unknown = [pair for pair in self._resting_on(choice, known) if not self._is_within(pair, known)]
            yield Narrowed(len(choice.kernels), len(unknown))
            wanted = self._suited(unknown or self._untried(choice, known), known)
            if len(wanted) < len(unknown):
                continue  # some pairs were closed: choose again
            if wanted:
                yield from self._tried(wanted, stops=bool(unknown))
            else:
                due = [pair for pair in self._resting_on(choice, known) if self._is_due(pair, known)]
                if not due:
                    return
                for pair in due:
                    yield from self._settled(pair, known)

    def _choice(self, known: Known) -> Choice | None:
        """Return the smallest set of kernels for all shapes if every unmeasured time were short enough.

        Return None if some shape has no kernel even then.
        """
        costs: dict[str, dict[Problem, float]] = {}
        for kernel in known:
            costs[kernel] = {}
            for problem in self.tuned.problems:
                pair = (kernel, problem)
                if self._is_within(pair, known):
                    costs[kernel][problem] = self.tuned.loss(known[kernel][problem])
                elif pair not in self._closed and pair not in self._unverified:
                    costs[kernel][problem] = UNKNOWN
        return fewest(costs, self.tuned.problems)

    def _is_within(self, pair: Pair, known: Known) -> bool:
        kernel, problem = pair
        trial = known.get(kernel, {}).get(problem)
        return trial is not None and pair not in self._unverified and self.tuned.loss(trial) <= self.tuned.within

    def _resting_on(self, choice: Choice, known: Known) -> list[Pair]:
        """Return for each shape the pair of a kernel and the shape on which the choice depends.

        The kernel is the fastest of the chosen kernels that were measured to be fast enough at the shape. If there is
        none, it is a chosen kernel that may still be tried at the shape.
        """
        pairs = []
        for problem in self.tuned.problems:
            within = [one for one in choice.kernels if self._is_within((one, problem), known)]
            ranked = {one: (known[one][problem].median_us or 0.0, one) for one in within}
            open_ = [one for one in choice.kernels if (one, problem) not in self._closed | self._unverified]
            pairs.append((min(within, key=ranked.__getitem__) if within else open_[0], problem))
        return pairs

    def _untried(self, choice: Choice, known: Known) -> list[Pair]:
        """Return the pairs of a chosen kernel and a shape that were not tried.

        The table of losses for smaller sets of kernels contains the times of these pairs.
        """
        pairs = ((kernel, problem) for kernel in choice.kernels for problem in self.tuned.problems)
        return [pair for pair in pairs if pair[1] not in known[pair[0]] and pair not in self._closed]

    def _suited(self, pairs: list[Pair], known: Known) -> list[tuple[Pair, KernelConfig]]:
        """Return the pairs that can be tried, each with the configuration to try. Mark all other pairs as closed."""
        found = []
        for kernel, problem in pairs:
            started = {one: trial.config for one, trial in known[kernel].items()}
            config = configuration_for(started, problem, self.bench.target.limits)
            if config is None or config.text in self.tuned.tried(problem):
                self._closed.add((kernel, problem))
            else:
                found.append(((kernel, problem), config))
        return found

    def _tried(self, wanted: list[tuple[Pair, KernelConfig]], *, stops: bool) -> Iterator[Event]:
        """Try the pairs, in ascending order of the number of kernels that are fast enough at the pair's shape.

        With `stops`, end after the first pair whose kernel is too slow at the shape.
        """
        known = self.tuned.candidates()
        pairs = ((kernel, problem) for kernel, at in known.items() for problem in at)
        serving = Counter(problem for _, problem in filter(lambda pair: self._is_within(pair, known), pairs))
        wanted = sorted(wanted, key=lambda one: (serving[one[0][1]], one[0][1], one[0][0]))
        tuner = self.bench.tuner()
        limits = self.bench.target.limits
        candidates = [session.candidate_of(config, problem, limits) for (_, problem), config in wanted]
        begun = tuner.compile_ahead(candidates)
        if self.bench.target.is_host:
            wait(begun)  # a running compiler would disturb the timing
        for (pair, _), candidate in zip(wanted, candidates, strict=True):
            yield from self.bench.turn(self.tuned, candidate.problem).listed([candidate])
            self._closed.add(pair)
            self.tuned.read(candidate.problem)
            if stops and not self._is_within(pair, self.tuned.candidates()):
                return

    def _is_due(self, pair: Pair, known: Known) -> bool:
        """Return whether the kernel still needs a full verification or a final.

        The final is a repeated timing of the kernel, interleaved with the shape's winner.
        """
        kernel, problem = pair
        row, winner = self.tuned.store.rows([known[kernel][problem].id])[0], self.tuned.winners[problem]
        if not row.verified_in_full:
            return True
        if self._turns[problem] >= MOST_TURNS or self.tuned.is_alone(problem):
            return False
        return row.round == 0 or row.round != winner.round

    def _settled(self, pair: Pair, known: Known) -> Iterator[Event]:
        """Run a final (repeated timing) with the kernel, then verify the kernel in full. Yield the events of both."""
        kernel, problem = pair
        trial = known[kernel][problem]
        turn = self.bench.turn(self.tuned, problem)
        self._turns[problem] += 1
        for event in turn.settled(turn.executor, {trial.config.text}):
            if isinstance(event, FinalFailure):
                self._turns[problem] = MOST_TURNS  # the present times must suffice
            yield event
        self.tuned.read(problem)
        verified = (
            session.verified(self.tuned.store.rows([trial.id])[0], turn.executor, turn.store)
            if self.tuned.is_right(trial)
            else None
        )
        if verified is not None:
            yield verified
            self.tuned.read(problem)
            if verified.outcome is Outcome.INTERRUPTED:
                self._unverified.add(pair)
