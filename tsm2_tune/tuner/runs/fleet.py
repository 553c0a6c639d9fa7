"""Several tuning runs on one database, each in its own process: start them, and merge their events and results.

The runs share only the database. Each run first tunes problems of its own. For the last problems, several runs share
the configurations of one problem. If a run dies, only its current measurement is lost.
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
    """Protocol for several tuning runs in other processes. It is a context manager: its exit ends all runs."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the runs that are started at first."""

    def events(self) -> Iterator[tuple[str, Event | End]]:
        """Yield (run's name, event).

        The last item of each run contains its result or error instead of an event, or None if the run was stopped.
        """

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Fleet:
    """Several tuning runs on this machine, each in a child process. It is a context manager: its exit ends all
    processes.
    """

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
        """Yield (run's name, event).

        The last item of each run contains its result or error instead of an event, or None if the run was stopped.
        """
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
    """The merged result of several runs, computed from their events."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        self._problems = problems
        self._ended: dict[tuple[str, Problem], ProblemEnded] = {}
        self._well: set[str] = set()  # device names of successful runs
        self.targets: dict[str, Target] = {}  # by run
        self.failures: dict[str, TuneError | None] = {}  # by run
        self.interrupted = 0  # trials and final comparisons that were interrupted from outside

    def update(self, run: str, received: Event | End) -> OfRun | RunEnded:
        """Add an event or the end of a run to the merged result. Return the event that is reported to the user."""
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
        """One ProblemEnded for each problem and device name.

        If several runs tuned a problem, `new_trials` of its ProblemEnded is the sum over these runs.
        """
        return tuple(self._ended.values())

    def refuse_failure(self) -> None:
        """Raise an error if no run succeeded: the runs' common error, or a WorkerError that lists their different
        errors.
        """
        if self._well:
            return
        texts = {run: str(error) if error is not None else STOPPED for run, error in self.failures.items()}
        first = next(iter(self.failures.values()), None)
        if first is not None and len(set(texts.values())) == 1:
            raise first
        raise WorkerError("every run failed: " + "; ".join(f"{run}: {text}" for run, text in texts.items()))

    @property
    def incomplete(self) -> tuple[Problem, ...]:
        """The problems that were not tuned on some device, because every run on a device of that name failed."""
        names = {target.identity.name for target in self.targets.values()} or {""}
        failed = names - self._well
        return tuple(one for one in self._problems if any((name, one) not in self._ended for name in failed))

    def _add(self, device_name: str, one: ProblemEnded) -> None:
        key = (device_name, one.problem)
        before = self._ended.pop(key, None)
        new_trials = one.new_trials + (before.new_trials if before is not None else 0)
        self._ended[key] = replace(one, new_trials=new_trials)
