"""A database of every kind of trial, and files of it in formats of other autotuners."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import tsm2_tune
from tests.fabricated import (
    BASIS,
    GPU,
    PROBLEM,
    configuration,
    final,
    measurement,
    trial,
    tuning_run,
    vendor_measurement,
)
from tsm2_tune.generator.families.published import Ism2Config
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results import records
from tsm2_tune.tuner.results.columns import values_of
from tsm2_tune.tuner.results.exchange.entry import Entry
from tsm2_tune.tuner.results.merge.problem_rows import IDS
from tsm2_tune.tuner.results.merge.union import RUN as RUN_COLUMNS
from tsm2_tune.tuner.results.merge.union import Part, Round, RunKey, Timed, Tried
from tsm2_tune.tuner.results.storage import schema
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import (
    Cache,
    Measurement,
    Outcome,
    TimeLimits,
    TuningRun,
    VendorMeasurement,
    Verdict,
)

T4, CACHE = "t4", "kernel-tuner-cache"
FASTEST, SLOWER, ISM2 = configuration(128, 8), configuration(256, 8), Ism2Config(1, 128, 8, 8, 4)
WRONG, LATE = configuration(128, 16), configuration(256, 16)
REFUSED, UNSTARTED, CRASHED = configuration(64, 8), configuration(64, 16), configuration(512, 8)
BEHIND = configuration(64, 4)
RUN = replace(tuning_run(), sms=132)
LATER = replace(tuning_run(seed=2, started_at="2026-02-03T04:05:06+00:00"), sms=132)
OTHER = Problem(20480, 8, 20480, "f32")
FAILED: dict[str, Any] = {"resources": None, "verdict": None, "measurement": None, "full_verdict": None}
REFUSAL = {"detail": "error: x\n\ty", "spill_bytes": None}
WITH = {"t4": {}, CACHE: {"family": "tsm2"}}
NINTHS = (1 / 9 * 1e3, 1 / 3 * 1e3, 5 / 9 * 1e3)  # in us, of so many digits that no quotient by 1000 gives them back
NAN, LATE_LIMITS = Verdict(False, math.inf, 'C[0, 0] = nan, "expected" 1'), TimeLimits(1.0, 2.5)
ODD = replace(measurement(NINTHS[1]), samples_us=NINTHS[::-1], low_us=NINTHS[0], high_us=NINTHS[2])
TRIALS = (  # each with its run: of two families, and of every outcome
    (RUN, trial(500, FASTEST, guideline_broken="min-reuse", limits=TimeLimits(120.0, 60.0))),
    (RUN, trial(520, SLOWER, full_verdict=None)),
    (LATER, replace(trial(config=ISM2), measurement=ODD)),
    (RUN, trial(config=WRONG, outcome=Outcome.WRONG_RESULT, **FAILED | {"verdict": NAN})),
    (RUN, trial(config=LATE, outcome=Outcome.TIMED_OUT, limits=LATE_LIMITS, **FAILED)),
    (RUN, trial(config=REFUSED, outcome=Outcome.COMPILE_FAILED, **FAILED | REFUSAL)),
    (RUN, trial(config=UNSTARTED, outcome=Outcome.LAUNCH_FAILED, **FAILED)),
    (RUN, trial(config=CRASHED, outcome=Outcome.CRASHED, **FAILED)),
    (RUN, trial(900, BEHIND, outcome=Outcome.BEHIND, verdict=None, full_verdict=None)),
)
VENDOR = (vendor_measurement(700), vendor_measurement(600, "cublasLtMatmul #3", right=False))
FINAL = final((FASTEST, 505), (ISM2, 340), vendor=VENDOR)
FINAL = replace(FINAL, measurements=((FASTEST, replace(measurement(505), slowed=2)), *FINAL.measurements[1:]))


def tuned_database(path: Path) -> None:
    """The trials, and a final with the vendor; and another problem."""
    with Store.open(path, create=True) as store:
        for run, tried in TRIALS:
            store.add_trial(run, tried)
        store.add_final(LATER, FINAL, ("tsm2", "ism2"), BASIS)
        store.add_trial(RUN, trial(100, FASTEST, problem=OTHER))


def entry(family: str | None = None) -> Entry:
    """The same trials and final, or those of this family, without a database."""
    trials = {
        one.config.text: Tried(
            _key(run),
            _own({"config": one.config.text, "basis": one.basis, "first_basis": None} | records.trial_values(one))
            | {"stamp": 1_700_000_000_000_000},
            _timed(run, one.measurement),
        )
        for run, one in TRIALS
        if family in (None, one.config.family)
    }
    timed = {config.text: _timed(LATER, measured) for config, measured in FINAL.measurements}
    vendor = {one.library: _vendor(one) for one in VENDOR}
    kept = {trials[text].key: one for text, one in timed.items() if text in trials and one is not None}
    final = Round(_key(LATER), "0123456789abcdef", 1_700_000_000_000_001, kept, vendor)
    return Entry(GPU, PROBLEM, Cache.CLEAN, Part({one.key: one for one in trials.values()}, [final]))


def _key(run: TuningRun) -> RunKey:
    values = values_of(run, schema.run)
    return tuple(values[name] for name in RUN_COLUMNS)


def _own(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in IDS}


def _timed(run: TuningRun, measured: Measurement | None) -> Timed | None:
    if measured is None:
        return None
    floor_us = run.ceilings.floor_us(PROBLEM)
    return Timed(_key(run), values_of(measured, schema.measurement) | {"floor_us": floor_us}, measured.samples_us)


def _vendor(one: VendorMeasurement) -> Timed:
    timed = _timed(LATER, one.measurement)
    assert timed is not None
    correct, ratio, detail = int(one.verdict.correct), one.verdict.worst_ratio, one.verdict.detail
    verdict = {"verdict_correct": correct, "verdict_worst_ratio": ratio, "verdict_detail": detail}
    of = {"library": one.library, "library_version": one.version, "routine": one.routine}
    kept = {name: value for name, value in timed.values.items() if name != "floor_us"}
    return replace(timed, values=kept | of | verdict)


def written(path: Path, form: str, **which: Any) -> Path:
    into = path.with_name(f"{form}.json")
    tsm2_tune.export(path, format=form, output=into, products=PROBLEM.text, **WITH[form] | which)
    return into


def document(path: Path, form: str, **which: Any) -> dict[str, Any]:
    return dict(json.loads(written(path, form, **which).read_text()))
