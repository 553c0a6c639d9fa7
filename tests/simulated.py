"""A device that takes the times that it is given, for tests of what is measured on one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from tests.fabricated import ONE_STATE, PROBLEM, measurement, trial, tuning_run, vendor_measurement
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.families import FAMILIES
from tsm2_tune.generator.families.published import TSM2, Tsm2Config
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.generator.source import KernelSource
from tsm2_tune.tuner.compile.pool import Compilers
from tsm2_tune.tuner.device.target import Target
from tsm2_tune.tuner.measure.vendor.finalists import VendorLibraries
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Binary, Cache, Outcome, Trial, Verdict
from tsm2_tune.tuner.search.candidates import Candidates
from tsm2_tune.tuner.search.loop import Tuner
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.phase_timer import PhaseTimer
from tsm2_tune.tuner.worker.client import AttemptResult, FinalRound, FinalTimes, Worker

RUN = tuning_run()
DEVICE = RUN.identity.name
TARGET = cast(
    Target,
    SimpleNamespace(
        identity=RUN.identity,
        toolchain=SimpleNamespace(digest="nvcc"),
        limits=PROFILES["h200"],
        is_host=False,
        **ONE_STATE,
    ),
)
V3 = sorted((one for one in TSM2.configurations() if one.version == "v3"), key=lambda one: one.text)
KERNELS = V3[:8]
A, B, C, D, E, F, G, *MANY = (one for one in V3 if one.threads == 128)
SHAPES = [Problem(4096 * number, 16, 4096, "f32") for number in (1, 2, 3, 4, 5)]
Times = Mapping[tuple[str, Problem], float]  # times of a configuration at a shape
TODAY = TARGET.basis(Cache.CLEAN)


def _binary(source: KernelSource) -> Binary:
    return Binary(source.digest.encode(), source.kernel, 0, 0.0)


COMPILES_NOTHING = cast(
    Compilers,
    SimpleNamespace(
        support=lambda *_: b"",
        begin_support=lambda _: None,
        begin=lambda source, *_: SimpleNamespace(done=lambda: True, result=lambda: _binary(source)),
        close=lambda: None,
    ),
)


class Simulated(Tuner):
    """A device on which kernels take the times that it is given; what has none crashes.

    In finals a kernel takes its time in `in_turns`, else its given one, else `change` times its newest stored one.
    """

    def __init__(
        self,
        store: Store,
        times: Times | None = None,
        in_turns: Times | None = None,
        change: float = 1.0,
        **options: Any,
    ) -> None:
        self.target, self.options, self.phases = TARGET, Options(**options), PhaseTimer()
        self._store, self._times, self._in_turns, self._change = (
            store,
            {} if times is None else times,
            in_turns or {},
            change,
        )
        self._ceilings, self._compilers = RUN.ceilings, COMPILES_NOTHING
        libraries = VendorLibraries((("cuBLAS", 130100),))
        self._worker = cast(Worker, SimpleNamespace(time_finalists=self.time_finalists, vendor=lambda: libraries))
        self.tried: list[tuple[str, Problem]] = []
        self.rounds: list[tuple[Problem, frozenset[str]]] = []
        self.in_full: list[tuple[str, Problem]] = []
        self.refuted: dict[str, Outcome] = {}  # by the full verification
        self.slowed = 0  # samples of each time while the clock had dropped
        self.failure: AttemptResult | None = None  # of each final

    def tune(self, search: Candidates, *_: Any) -> Any:
        for one in search:
            self.tried.append((one.config.text, one.problem))
            yield stored_trial(one.config, one.problem, self._times.get((one.config.text, one.problem)))

    def compile_ahead(self, candidates: Any) -> Any:
        return []

    def verify_in_full(self, problem: Problem, config: KernelConfig) -> AttemptResult:
        self.in_full.append((config.text, problem))
        outcome = self.refuted.get(config.text, Outcome.OK)
        return AttemptResult(outcome, "it was so", verdict=Verdict(True, 0.1, "right"))

    def time_finalists(self, request: FinalRound) -> FinalTimes | AttemptResult:
        at = request.problem
        tried = self._store.history(DEVICE, at, tuple(FAMILIES), TODAY).tried()
        stored = {render(at, one.config).digest: one for one in tried}
        members = [stored[entry.code.decode()] for entry in request.entries]
        if self.failure is not None:
            return self.failure
        self.rounds.append((at, frozenset(one.config.text for one in members)))
        newest = [((one.config.text, at), self._change * (one.newest_us or 0.0)) for one in members]
        given = [self._times.get(pair, us) for pair, us in newest]
        us = (self._in_turns.get(pair, us) for (pair, _), us in zip(newest, given, strict=True))
        found = tuple(replace(measurement(one, 0.1), slowed=self.slowed) for one in us)
        return FinalTimes((found,), (vendor_measurement(101.0),) if request.vendor else ())


def stored_trial(config: KernelConfig, problem: Problem, median_us: float | None, **changes: Any) -> Trial:
    changes = {"basis": TODAY, "full_verdict": None} | changes
    if median_us is None:
        changes |= {"outcome": Outcome.CRASHED, "verdict": None, "measurement": None}
    source = render(problem, config)
    return trial(median_us or 0.0, config, problem=problem, spread_us=0.1, source=source, **changes)


def store_trials(store: Store, times: Mapping[Tsm2Config, float], **changes: Any) -> None:
    """Store a trial of each configuration with its time."""
    for config, median_us in times.items():
        store.add_trial(RUN, stored_trial(config, PROBLEM, median_us, **changes))
