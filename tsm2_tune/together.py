"""Events of several runs as a display of one search takes them: a problem that several are at ends once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.events import (
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
    """What is shown of runs, and when their pairs are: once all that live have come to these."""

    def __init__(self) -> None:
        self._device_names: dict[str, str] = {}  # by run, as all that follow
        self._at: dict[str, Problem] = {}
        self._in_pairs = dict[str, bool]()  # of runs that live
        self._new_trials: dict[tuple[str, Problem], int] = {}
        self._told: dict[tuple[str, Problem], ProblemEnded] = {}  # ends that were shown, the last of each problem
        self._held: list[Kept] = []  # of pairs, before they are shown
        self._most_done = -1  # of pairs, as any run has counted them

    def shown(self, event: OfRun | RunEnded) -> Iterator[Kept]:
        """What is to be shown now. A run that is at nothing any more is told by an end of itself."""
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
        """The end of the problem; or of what this run does of it, where others go on or had left nothing to do."""
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
