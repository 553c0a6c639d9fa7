"""Several runs on one database, each in its own process: start them, merge their events and results.

The runs share only the database and divide the work by leases: first whole problems, then the configurations of the
last ones. So a run that dies costs only its current trial.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Protocol, Self

from tsm2_tune.errors import TuneError, WorkerError
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.device.target import Target
from tsm2_tune.tuner.runs.child_run import ChildRun, End
from tsm2_tune.tuner.runs.events import Event, OfRun, ProblemEnded, RunEnded, RunStarted, is_interruption
from tsm2_tune.tuner.runs.run import Run, RunResult
from tsm2_tune.tuner.runs.signals import held

STOPPED = "it was stopped"


class ChildRuns(Protocol):
    """Runs in other processes. Use as a context manager: no run outlives it."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the first runs."""

    def events(self) -> Iterator[tuple[str, Event | End]]:
        """Yield events as they happen, with the name of the run. The last item of each run is its end."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Fleet:
    """Runs on this machine, by name. Use as a context manager: no process of them outlives it."""

    def __init__(self, runs: Mapping[str, Run]) -> None:
        self._runs = runs
        self._members: dict[str, ChildRun] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the runs."""
        return tuple(self._runs)

    def __enter__(self) -> Self:
        try:
            for name, run in self._runs.items():
                self._members[name] = ChildRun(run)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def events(self) -> Iterator[tuple[str, Event | End]]:
        """Yield events as ChildRuns does."""
        living: dict[Connection, str] = {member.connection: name for name, member in self._members.items()}
        while living:
            for connection in wait(list(living)):
                assert isinstance(connection, Connection)
                name = living[connection]
                member = self._members[name]
                for event in member.receive():
                    yield name, event
                if member.has_ended:
                    del living[connection]
                    yield name, member.end

    def _close(self) -> None:
        with held():
            for member in self._members.values():
                member.stop()
            for member in self._members.values():
                member.close()


class Merged:
    """The joint result of several runs, updated by their events."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        self._problems = problems
        self._ended: dict[tuple[str, Problem], ProblemEnded] = {}
        self._well: set[str] = set()  # device names of successful runs
        self.targets: dict[str, Target] = {}  # by run
        self.failures: dict[str, TuneError | None] = {}  # by run
        self.interrupted = 0  # trials and finals that the machine interrupted

    def update(self, run: str, received: Event | End) -> OfRun | RunEnded:
        """Update the result, and return the event to report."""
        if isinstance(received, RunResult):
            self._well.add(received.target.identity.name)
            return RunEnded(run, "")
        if received is None or isinstance(received, TuneError):
            self.failures[run] = received
            return RunEnded(run, str(received) if received is not None else STOPPED)
        self.interrupted += is_interruption(received)
        if isinstance(received, RunStarted):
            self.targets[run] = received.target
        elif isinstance(received, ProblemEnded):
            self._add(self.targets[run].identity.name, received)
        return OfRun(run, received)

    @property
    def ended(self) -> tuple[ProblemEnded, ...]:
        """One end for each problem and device name, however many runs tuned it."""
        return tuple(self._ended.values())

    def refuse_failure(self) -> None:
        """Raise the runs' error if none of them succeeded; a WorkerError for several errors."""
        if self._well:
            return
        texts = {run: str(error) if error is not None else STOPPED for run, error in self.failures.items()}
        first = next(iter(self.failures.values()), None)
        if first is not None and len(set(texts.values())) == 1:
            raise first
        raise WorkerError("no run ended as it should: " + "; ".join(f"{run}: {text}" for run, text in texts.items()))

    @property
    def incomplete(self) -> tuple[Problem, ...]:
        """The problems that no run completed, since all runs with a device name failed."""
        names = {target.identity.name for target in self.targets.values()} or {""}
        failed = names - self._well
        return tuple(one for one in self._problems if any((name, one) not in self._ended for name in failed))

    def _add(self, device_name: str, one: ProblemEnded) -> None:
        key = (device_name, one.problem)
        before = self._ended.pop(key, None)
        new_trials = one.new_trials + (before.new_trials if before is not None else 0)
        self._ended[key] = replace(one, new_trials=new_trials)
