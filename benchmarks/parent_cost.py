"""Measure the processor time of the process that has the searches and the database: its *parent process*.

    python -m benchmarks.parent_cost 20480x16x20480:f32
    python -m benchmarks.parent_cost 20480x16x20480:f32 --devices 8

Compilers and kernels are replaced by stubs. Planning, rendering, leases and the database are real. With `--devices`
child processes use the stubs, as in a run on several GPUs: they render the kernels. Each device tunes a problem of
its own. The rate of trials decides how many trials are stored in one transaction. No GPU is needed. Other processes
on the machine can only lengthen a time, so use the least of several rounds.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

import click

from benchmarks import stub_device
from benchmarks.stub_device import TARGET, StubTuner
from tsm2_tune.api.parse import REACH
from tsm2_tune.commands.errors import Command
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Trial
from tsm2_tune.tuner.runs.events import ProblemEnded, TrialStored
from tsm2_tune.tuner.runs.problem_queue import ProblemQueue
from tsm2_tune.tuner.runs.remote_executor import RemoteExecutor
from tsm2_tune.tuner.search.candidates import Search
from tsm2_tune.tuner.search.executor import Executor
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.spaces import Spaces
from tsm2_tune.tuner.worker.child_process import start_child

APART = 1024  # the devices' problems differ by this many rows


@dataclass(frozen=True, slots=True)
class Cost:
    """The processor time of the parent process."""

    planning_seconds: float  # for each problem, before its first trial
    trial_milliseconds: float  # for each trial


def cost(problem: Problem, trials: int, db: str, *, devices: int, rate: float) -> Cost:
    """Return the cost of a search of `trials` trials on each device, at `rate` trials per second.

    `devices` is the number of child processes. If it is 0, this process has the stubs.
    """
    count, seconds = max(1, devices), 1 / rate
    problems = tuple(replace(problem, m=problem.m + APART * number) for number in range(count))
    options = Options(max_trials=trials, reach=REACH, sharing=count)
    with Store.open(db, create=True) as store, store.leases(TARGET.identity.name) as leases, ExitStack() as stack:
        own = StubTuner(TARGET, options, trial_seconds=seconds)
        executors = [_remote(options, seconds, stack) for _ in range(devices)] or [own]
        queue = ProblemQueue(Spaces(problems, TARGET.limits, {}, ()), store, leases)
        with ThreadPoolExecutor(count) as threads:
            found = list(threads.map(partial(_times, queue), executors))
    planning, trying, stored = (sum(values) for values in zip(*found, strict=True))
    return Cost(planning / count, 1e3 * trying / stored)


def _remote(options: Options, trial_seconds: float, stack: ExitStack) -> Executor:
    """Start a process for a device, and return its executor. The stack ends the process."""
    process, connection = start_child(stub_device.serve, str(trial_seconds))
    stack.callback(process.wait)
    stack.enter_context(connection)
    executor = RemoteExecutor(connection, TARGET, options, wait=False)
    executor.open(lambda _: None)
    return executor


def _times(queue: ProblemQueue, executor: Executor) -> tuple[float, float, int]:
    """Tune on a device. Return this thread's seconds before the first trial, its seconds of trials, and the trials.

    Only the first problem of the device counts, not searches that it joins afterwards.
    """
    begun, first, ended, stored, is_first = time.thread_time(), list[float](), 0.0, 0, True
    tune = executor.tune

    def timed(search: Search, on_start: Callable[[Candidate], object]) -> Iterator[Trial]:
        def started(candidate: Candidate) -> None:
            first.append(time.thread_time())
            on_start(candidate)

        return tune(search, started)

    with patch.object(executor, "tune", timed):
        for event in queue.events(executor):
            if isinstance(event, TrialStored) and is_first:
                stored, ended = stored + 1, time.thread_time()
            is_first = is_first and not isinstance(event, ProblemEnded)
    return first[0] - begun, ended - first[0], stored


@click.command(cls=Command)
@click.argument("problem")
@click.option("--trials", default=800, show_default=True, help="For each device.")
@click.option("--devices", type=click.IntRange(0), default=0, show_default=True, help="Child processes.")
@click.option("--rate", default=80.0, show_default=True, help="Trials per second of each device.")
@click.option("--rounds", default=3, show_default=True, help="Each with problems of its own.")
@click.option("--db", help="Address of an empty database; without it a new file for each round.")
def main(problem: str, trials: int, devices: int, rate: float, rounds: int, db: str | None) -> None:
    """Measure the processor time of the parent process."""
    for number in range(rounds):
        of_round = Problem.parse(problem)
        of_round = replace(of_round, m=of_round.m + APART * max(1, devices) * number)
        with tempfile.TemporaryDirectory(dir=".") as folder:
            name = db or str(Path(folder) / "results.db")
            found = cost(of_round, trials, name, devices=devices, rate=rate)
        click.echo(f"{found.trial_milliseconds:.2f} ms a trial, {found.planning_seconds:.2f} s a problem")


if __name__ == "__main__":
    main()
