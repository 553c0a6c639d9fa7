"""A database of every kind of trial, and files of it in formats of other autotuners."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import tsm2_tune
from tests.fabricated import BASIS, PROBLEM, configuration, final, measurement, trial, tuning_run, vendor_measurement
from tsm2_tune.generator.families.ism2 import Ism2Config
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.store import Store
from tsm2_tune.tuner.trial import Outcome, TimeLimits, Verdict

T4, CACHE = "t4", "kernel-tuner-cache"
FASTEST, SLOWER, ISM2 = configuration(128, 8), configuration(256, 8), Ism2Config(1, 128, 8, 8, 4)
WRONG, LATE = configuration(128, 16), configuration(256, 16)
REFUSED, UNSTARTED, CRASHED = configuration(64, 8), configuration(64, 16), configuration(512, 8)
RUN = replace(tuning_run(), sms=132)
LATER = replace(tuning_run(seed=2, started_at="2026-02-03T04:05:06+00:00"), sms=132)
OTHER = Problem(20480, 8, 20480, "f32")
FAILED: dict[str, Any] = {"resources": None, "verdict": None, "measurement": None, "full_verdict": None}
WITH = {"t4": {}, CACHE: {"family": "tsm2"}}
NINTHS = (1 / 9 * 1e3, 1 / 3 * 1e3, 5 / 9 * 1e3)  # in us, of so many digits that no quotient by 1000 gives them back


def tuned_database(path: Path) -> None:
    """A problem with two families, every outcome, and a final with the vendor; and another problem."""
    nan, late = Verdict(False, math.inf, 'C[0, 0] = nan, "expected" 1'), TimeLimits(1.0, 2.5)
    odd = replace(measurement(NINTHS[1]), samples_us=NINTHS[::-1], low_us=NINTHS[0], high_us=NINTHS[2])
    with Store.open(path, create=True) as store:
        store.add_trial(RUN, trial(500, FASTEST, guideline_broken="min-reuse", limits=TimeLimits(120.0, 60.0)))
        store.add_trial(RUN, trial(520, SLOWER, full_verdict=None))
        store.add_trial(LATER, replace(trial(config=ISM2), measurement=odd))
        for config, outcome, changes in (
            (WRONG, Outcome.WRONG_RESULT, {**FAILED, "verdict": nan}),
            (LATE, Outcome.TIMED_OUT, {**FAILED, "limits": late}),
            (REFUSED, Outcome.COMPILE_FAILED, {**FAILED, "detail": "error: x\n\ty", "spill_bytes": None}),
            (UNSTARTED, Outcome.LAUNCH_FAILED, FAILED),
            (CRASHED, Outcome.CRASHED, FAILED),
        ):
            store.add_trial(RUN, trial(1, config, outcome=outcome, **changes))
        vendor = (vendor_measurement(700), vendor_measurement(600, "cublasLtMatmul #3", right=False))
        store.add_final(LATER, final((FASTEST, 505), (ISM2, 340), vendor=vendor), ("tsm2", "ism2"), BASIS)
        store.add_trial(RUN, trial(100, FASTEST, problem=OTHER))


def written(path: Path, form: str, **which: Any) -> Path:
    into = path.with_name(f"{form}.json")
    tsm2_tune.export(path, format=form, output=into, products=PROBLEM.text, **WITH[form] | which)
    return into


def document(path: Path, form: str, **which: Any) -> dict[str, Any]:
    return dict(json.loads(written(path, form, **which).read_text()))
