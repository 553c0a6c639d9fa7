"""Merge events of several runs for one display: a problem that several runs tune ends once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.runs.events import (
    Crossed,
    Event,
    OfRun,
    PairsStarted,
    ProblemEnded,
    ProblemStarted,
    RunEnded,
    RunStarted,
)

Kept = tuple[str, Event]  # the name of the run, and what happened in it


class Together:
    """Merges the events of several runs. It holds back pairs until all live runs measure pairs."""

    def __init__(self) -> None:
        self._device_names: dict[str, str] = {}  # by run
        self._at: dict[str, Problem] = {}  # the current problem, by run
        self._in_pairs = dict[str, bool]()  # whether it measures pairs, by live run
        self._new_trials: dict[tuple[str, Problem], int] = {}
        self._told: dict[tuple[str, Problem], ProblemEnded] = {}  # the last shown end of each problem
        self._held: list[Kept] = []  # events of pairs that wait
        self._most_done = -1  # pairs done, the most that any run counted

    def shown(self, event: OfRun | RunEnded) -> Iterator[Kept]:
        """Yield the events to show now. A run that works on nothing any more is shown as a run that ended."""
        run, happened = event.run, event.event if isinstance(event, OfRun) else event
        if isinstance(happened, RunStarted):
            self._device_names[run], self._in_pairs[run] = happened.target.identity.name, False
        elif isinstance(happened, PairsStarted):
            self._in_pairs[run] = True
        elif isinstance(happened, RunEnded):
            self._in_pairs.pop(run, None)
            self._at.pop(run, None)
        elif isinstance(happened, ProblemStarted):
            self._at[run] = happened.space.problem
        elif isinstance(happened, ProblemEnded):
            happened = self._ended(run, happened)
        if self._in_pairs.get(run) and not isinstance(happened, PairsStarted):
            self._held.append((run, happened))
        elif not isinstance(happened, PairsStarted):
            yield run, happened
        yield from self._pairs()

    def _ended(self, run: str, event: ProblemEnded) -> Event:
        """Return the end of the problem, or only of this run's part if others still tune it or left nothing to do."""
        key = (self._device_names[run], event.problem)
        self._at.pop(run, None)
        self._new_trials[key] = self._new_trials.get(key, 0) + event.new_trials
        if any((self._device_names[other], problem) == key for other, problem in self._at.items()):
            return RunEnded(run, "")
        told = self._told.get(key)
        if told is not None and not event.new_trials and event.winner == told.winner:
            return RunEnded(run, "")
        self._told[key] = replace(event, new_trials=self._new_trials[key])
        return self._told[key]

    def _pairs(self) -> Iterator[Kept]:
        if not self._in_pairs or not all(self._in_pairs.values()):
            return
        if self._most_done < 0:
            self._most_done = 0
            yield "", PairsStarted()
        held, self._held = self._held, []
        for run, event in held:
            if isinstance(event, Crossed):
                if event.done < self._most_done:
                    continue
                self._most_done = event.done
            yield run, event
