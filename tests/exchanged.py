"""A database of every kind of trial, and files of it in formats of other autotuners.

`python -m tests.exchanged` writes the snapshots of these files anew.
"""

from __future__ import annotations

import json
import math
import re
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import tsm2_tune
from tests.databases import facts
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
from tsm2_tune.tuner.results.exchange.documents import DOCUMENTS
from tsm2_tune.tuner.results.exchange.entry import NAME, Entry
from tsm2_tune.tuner.results.merge.union import Part
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Cache, Outcome, TimeLimits, Verdict

SNAPSHOTS = Path(__file__).parent / "documents"
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


@cache
def _part() -> Part:
    with tempfile.TemporaryDirectory() as folder:
        tuned_database(path := Path(folder, "tuned.db"))
        return facts(path)[GPU, PROBLEM]


def entry(family: str | None = None) -> Entry:
    """The trials and the final, or those of this family."""
    trials = {key: one for key, one in _part().trials.items() if family in (None, one.values["family"])}
    rounds = [
        replace(one, timed={key: timed for key, timed in one.timed.items() if key in trials})
        for one in _part().rounds
    ]
    return Entry(GPU, PROBLEM, Cache.CLEAN, Part(trials, rounds))


def written(path: Path, form: str, **which: Any) -> Path:
    into = path.with_name(f"{form}.json")
    tsm2_tune.export(path, format=form, output=into, products=PROBLEM.text, **WITH[form] | which)
    return into


def document(path: Path, form: str, **which: Any) -> dict[str, Any]:
    return dict(json.loads(written(path, form, **which).read_text()))


def snapshot(form: str) -> str:
    """Return the text of a document, without the record and the dates of trials."""
    found = {name: one for name, one in DOCUMENTS[form](entry(WITH[form].get("family"))).items() if name != NAME}
    return re.sub(r'("timestamp": )"[^"]+"', r'\1""', json.dumps(found, indent=1)) + "\n"


if __name__ == "__main__":
    for form in DOCUMENTS:
        SNAPSHOTS.joinpath(f"{form}.json").write_text(snapshot(form))
