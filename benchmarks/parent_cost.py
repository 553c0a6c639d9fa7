"""Measure the processor milliseconds per trial of the process that runs a search.

    python -m benchmarks.parent_cost 20480x16x20480:f32

Compilers and the worker process are replaced by stubs that answer at once. Planning, rendering, claims and the
database are real. No GPU is needed. Other processes on the machine can only lengthen a time, so use the least of
several runs.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import click

from benchmarks.scale_rates import EVERY, SAMPLES, run_of
from tsm2_tune.api.parse import REACH
from tsm2_tune.commands.errors import Command
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.source import KernelSource
from tsm2_tune.generator.space.space import search_space
from tsm2_tune.tuner.measure.timing import measurement
from tsm2_tune.tuner.results.fingerprint import basis, tools
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Binary, Cache, LoadedResources, Outcome, Verdict
from tsm2_tune.tuner.runs.events import TrialStored
from tsm2_tune.tuner.search import session
from tsm2_tune.tuner.search.loop import Options, Tuner
from tsm2_tune.tuner.search.phase_timer import PhaseTimer
from tsm2_tune.tuner.worker.client import AttemptResult
from tsm2_tune.tuner.worker.time_limit import RunningClock

RUN = run_of(0)
ON = (RUN.identity.toolkit, RUN.identity.flags)


class AtOnce(Tuner):
    """A tuner whose trials end at once: one of EVERY is correct, and the others are too slow ("behind")."""

    def __init__(self, trials: int) -> None:
        self.target = cast(Any, SimpleNamespace(
            identity=RUN.identity, toolchain=SimpleNamespace(digest="nvcc"), limits=PROFILES["h100"], is_host=False,
            cache=lambda asked: asked, caches=lambda *_: (Cache.DIRTY,), basis=lambda cache: basis(*ON, cache),
            tools=tools(*ON, RUN.identity.driver),
        ))  # fmt: skip
        self.options = Options(max_trials=trials, reach=REACH)
        self.phases, self.clock, self._ceilings = PhaseTimer(), RunningClock(), RUN.ceilings
        self._worker = cast(Any, SimpleNamespace(attempt=self._attempt, ask_ahead=lambda _: None))
        self._compilers = cast(Any, SimpleNamespace(
            support=lambda *_: "", begin_support=lambda _: None, begin=_begin, finish=_binary,
            files=lambda *paths: paths,
        ))  # fmt: skip
        self._answers = 0
        self.begun_seconds = 0.0  # processor time of this process at the first trial

    def _attempt(self, _: object, idle_work: Callable[[], object]) -> AttemptResult:
        if not self._answers:
            self.begun_seconds = time.process_time()
        idle_work()
        is_right = self._answers % EVERY == 0
        self._answers += 1
        outcome = Outcome.OK if is_right else Outcome.BEHIND
        samples = [(30.0 if is_right else 90.0) + place % 7 / 7 for place in range(SAMPLES[outcome])]
        return AttemptResult(
            outcome,
            "",
            resources=LoadedResources(64, 0, 4096, 8),
            measurement=measurement(samples, None, Cache.DIRTY),
            verdict=Verdict(True, 0.01, "every element is right") if is_right else None,
        )

    def final(self, *_: Any, **__: Any) -> None:
        return None

    def verify_in_full(self, *_: Any) -> AttemptResult:
        return AttemptResult(Outcome.OK, "", verdict=Verdict(True, 0.01, "every element is right"))


def _begin(_: KernelSource) -> Future[None]:
    compiled = Future[None]()
    compiled.set_result(None)
    return compiled


def _binary(source: KernelSource, *_: object, **__: object) -> Binary:
    return Binary(source.digest, source.kernel, 0, 0.0)


def milliseconds_per_trial(problem: Problem, trials: int, db: str) -> float:
    """Return the processor milliseconds per trial, from the first to the last trial, up to a limit."""
    space, tuner = search_space(problem, PROFILES["h100"]), AtOnce(trials)
    _ = list(space.kept)
    found, ended_seconds = 0, 0.0
    with Store.open(db, create=True) as store:
        for event in session.run([space], tuner, store):
            if isinstance(event, TrialStored):
                found, ended_seconds = found + 1, time.process_time()
    return 1e3 * (ended_seconds - tuner.begun_seconds) / found


@click.command(cls=Command)
@click.argument("problem")
@click.option("--trials", default=1000, show_default=True)
@click.option("--rounds", default=3, show_default=True, help="Each with an empty database.")
def main(problem: str, trials: int, rounds: int) -> None:
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(dir=".") as folder:
            found = milliseconds_per_trial(Problem.parse(problem), trials, str(Path(folder) / "results.db"))
        click.echo(f"{found:.2f} ms a trial")


if __name__ == "__main__":
    main()
