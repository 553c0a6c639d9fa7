"""Merge the events of several runs for one display. The end of a problem that several runs tune is shown once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.runs.events import (
    Event,
    OfRun,
    PairMeasured,
    PairsStarted,
    ProblemEnded,
    ProblemStarted,
    RunEnded,
    RunStarted,
)

RunEvent = tuple[str, Event]  # the name of the run, and one of its events


class MergedEvents:
    """Merger of the events of several runs into one sequence for a display.

    After the search, runs time their kernels at other shapes, in pairs of a kernel and a shape. The events of pairs
    are held back until all active runs have finished their search.
    """

    def __init__(self) -> None:
        self._device_names: dict[str, str] = {}  # by run
        self._at: dict[str, Problem] = {}  # the current problem, by run
        self._in_pairs = dict[str, bool]()  # whether the run times pairs, by active run
        self._new_trials: dict[tuple[str, Problem], int] = {}
        self._ends: dict[tuple[str, Problem], ProblemEnded] = {}  # the last end event, by device and problem
        self._held: list[RunEvent] = []  # events of pairs that are held back
        self._most_done = -1  # the largest number of pairs done in any run

    def merged(self, event: OfRun | RunEnded) -> Iterator[RunEvent]:
        """Add an event, and yield the events to show now, each with its run's name."""
        run, inner = event.run, event.event if isinstance(event, OfRun) else event
        if isinstance(inner, RunStarted):
            self._device_names[run], self._in_pairs[run] = inner.target.identity.name, False
        elif isinstance(inner, PairsStarted):
            self._in_pairs[run] = True
        elif isinstance(inner, RunEnded):
            self._in_pairs.pop(run, None)
            self._at.pop(run, None)
        elif isinstance(inner, ProblemStarted):
            self._at[run] = inner.space.problem
        elif isinstance(inner, ProblemEnded):
            inner = self._ended(run, inner)
        if self._in_pairs.get(run) and not isinstance(inner, PairsStarted):
            self._held.append((run, inner))
        elif not isinstance(inner, PairsStarted):
            yield run, inner
        yield from self._pairs()

    def _ended(self, run: str, event: ProblemEnded) -> Event:
        """Return the event to show when a run has ended a problem.

        The result is RunEnded if another run still tunes the problem. The result is also RunEnded if the problem has
        ended before, and this run added no trials and no new winner. Otherwise the result is the event, with the
        number of trials of all runs.
        """
        key = (self._device_names[run], event.problem)
        self._at.pop(run, None)
        self._new_trials[key] = self._new_trials.get(key, 0) + event.new_trials
        if any((self._device_names[other], problem) == key for other, problem in self._at.items()):
            return RunEnded(run, "")
        previous = self._ends.get(key)
        if previous is not None and not event.new_trials and event.winner == previous.winner:
            return RunEnded(run, "")
        self._ends[key] = replace(event, new_trials=self._new_trials[key])
        return self._ends[key]

    def _pairs(self) -> Iterator[RunEvent]:
        if not self._in_pairs or not all(self._in_pairs.values()):
            return
        if self._most_done < 0:
            self._most_done = 0
            yield "", PairsStarted()
        held, self._held = self._held, []
        for run, event in held:
            if isinstance(event, PairMeasured):
                if event.done < self._most_done:
                    continue
                self._most_done = event.done
            yield run, event
