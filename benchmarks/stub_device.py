"""A stub of a GPU, without compilers and kernels, for benchmarks of the process that has searches and database."""

from __future__ import annotations

import time
from concurrent.futures import Future
from contextlib import nullcontext
from functools import partial
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

from benchmarks.scale_rates import EVERY, SAMPLES, run_of
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.source import KernelSource
from tsm2_tune.tuner.compile.compiler import Toolchain
from tsm2_tune.tuner.device.target import Target
from tsm2_tune.tuner.measure.timing import measurement
from tsm2_tune.tuner.results.trial import Binary, Cache, LoadedResources, Outcome, Verdict
from tsm2_tune.tuner.runs import device_process
from tsm2_tune.tuner.search.loop import Tuner
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.phase_timer import PhaseTimer
from tsm2_tune.tuner.worker.client import AttemptResult
from tsm2_tune.tuner.worker.time_limit import RunningClock

RUN = run_of(0)
TARGET = Target("0", PROFILES["h100"], RUN.identity, Toolchain("nvcc", "", (), ".cu", ".cubin", extra_digest=""))
RIGHT = Verdict(True, 0.01, "every element is right")


class StubTuner(Tuner):
    """A tuner whose compilers and worker process are stubs. A trial takes `trial_seconds`.

    One of EVERY trials is correct, and the others are too slow ("behind").
    """

    def __init__(self, target: Target, options: Options, *, trial_seconds: float = 0.0) -> None:
        self.target, self.options = target, options
        self.phases, self.clock, self._ceilings = PhaseTimer(), RunningClock(), RUN.ceilings
        self._worker = cast(Any, SimpleNamespace(
            start=lambda: None, close=lambda: None, attempt=self._attempt, send_ahead=lambda _: None,
        ))  # fmt: skip
        self._compilers = cast(Any, SimpleNamespace(
            support=lambda *_: "", begin_support=lambda _: None, begin=_begin, finish=_binary,
            files=lambda *paths: paths, are_whole=lambda *_: True, close=lambda: None,
        ))  # fmt: skip
        self._answers, self._trial_seconds = 0, trial_seconds

    def _attempt(self, _: object) -> AttemptResult:
        time.sleep(self._trial_seconds)
        is_right = self._answers % EVERY == 0
        self._answers += 1
        outcome = Outcome.OK if is_right else Outcome.BEHIND
        samples = [(30.0 if is_right else 90.0) + place % 7 / 7 for place in range(SAMPLES[outcome])]
        return AttemptResult(
            outcome,
            "",
            resources=LoadedResources(64, 0, 4096, 8),
            measurement=measurement(samples, None, Cache.DIRTY),
            verdict=RIGHT if is_right else None,
        )

    def final(self, *_: Any, **__: Any) -> None:
        return None

    def verify_in_full(self, *_: Any) -> AttemptResult:
        return AttemptResult(Outcome.OK, "", verdict=RIGHT)


def _begin(_: KernelSource) -> Future[None]:
    compiled = Future[None]()
    compiled.set_result(None)
    return compiled


def _binary(source: KernelSource, *_: object, **__: object) -> Binary:
    return Binary(source.digest, source.kernel, 0, 0.0)


def serve(channel: Connection, trial_seconds: str) -> None:
    """Answer the requests of a run like the process of a device, but with a StubTuner."""
    with (
        patch.object(device_process, "Tuner", partial(StubTuner, trial_seconds=float(trial_seconds))),
        patch.object(device_process, "device_lock", lambda *_: nullcontext()),
    ):
        device_process.serve_device(channel)
