"""A good database, and what somebody may do to it."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from tests.databases import LATE
from tests.fabricated import PROBLEM, add_text, configuration, final, plain_sql, trial, tuning_run, vendor_measurement
from tests.simulated import RUN, TARGET
from tsm2_tune.generator.families.published import Ism2Config
from tsm2_tune.generator.families.staged import StagedFmaConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.generator.source import digest_of
from tsm2_tune.tuner.results.fingerprint import basis
from tsm2_tune.tuner.results.storage import schema
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Cache, Outcome, TimeLimits, Verdict
from tsm2_tune.tuner.search.quarantine import quarantined

SKINNY, SMALL, GRAM = (
    Problem(20480, 16, 20480, "f32"),
    Problem(512, 4, 300, "f64"),
    Problem(16, 16, 10**6, "f32", "tn"),
)
YESTERDAY = basis("nvcc 12.9", "-arch=sm_90", Cache.CLEAN)  # another compiler's
FAMILIES = ("tsm2", "ism2")  # that a tuning goes on with

EVIL = 'extern "C" void evil() {}'


def good_database(path: Path) -> None:
    """Trials of two devices: right ones, each kind of failure, finals, older bases, a stale winner; a quarantine."""
    path.write_bytes(_good_content())


@cache
def _good_content() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "good.db")
        _make_good(path)
        return path.read_bytes()


def _make_good(path: Path) -> None:
    today = TARGET.basis(Cache.CLEAN)
    c128, c256, ism2 = configuration(128), configuration(256), Ism2Config(1, 128, 8, 8, 4)
    staged = StagedFmaConfig(128, 128, 16, 16, 128, 2, 0, splits=396, min_blocks=1, rows=8, columns=8, step=2)
    failed: dict[str, Any] = {"resources": None, "verdict": None, "measurement": None}
    with Store.open(path, create=True) as store:
        for problem in (SKINNY, SMALL):
            for tried in (
                trial(500, c128, problem=problem, basis=today, limits=TimeLimits(120.0, 60.0)),
                trial(510, c256, problem=problem, basis=today, guideline_broken="min-reuse"),
                trial(520, ism2, problem=problem, basis=today),
            ):
                store.add_trial(RUN, tried)
        wrong = Verdict(False, float("inf"), "C[0, 0] = nan")
        late = replace(trial(1, configuration(512), basis=today), outcome=Outcome.TIMED_OUT, **failed)
        store.add_trial(RUN, replace(late, limits=TimeLimits(1.0, 1.0)))
        refused = trial(1, configuration(64), basis=today, outcome=Outcome.COMPILE_FAILED, detail="x\ny", **failed)
        store.add_trial(RUN, refused)
        broken = trial(1, configuration(64, 4), basis=today, outcome=Outcome.WRONG_RESULT, verdict=wrong)
        store.add_trial(RUN, replace(broken, measurement=None))
        store.add_trial(RUN, trial(300, staged, problem=GRAM, basis=today))
        store.add_trial(RUN, trial(490, c128, basis=YESTERDAY))
        later = tuning_run(seed=2, started_at="2026-02-03T04:05:06+00:00")
        vendor = (vendor_measurement(480), vendor_measurement(470, "cublasLtMatmul #3", right=False))
        store.add_final(later, final((c128, 495), (c256, 505), (ism2, 515), vendor=vendor), tuple(FAMILIES), today)
        store.add_trial(tuning_run("Tesla K40c", compute_capability="3.5"), trial(900, c128, problem=SMALL))
        faulty = quarantined(TARGET, SKINNY, configuration(32), Outcome.CRASHED, "an illegal address")
        hanging = quarantined(TARGET, SMALL, configuration(64, 2), Outcome.TIMED_OUT, "it took more than 1 s", 1.0)
        store.add_trials(RUN, [], hazards=[faulty, hanging])


def plant(path: Path, digest: str, text: str) -> None:
    """Let the trials of a kernel have this text, with the digest that goes with it: whoever prepares a file can."""
    others = ", ".join(one.name for one in schema.source.c if one.name not in ("digest", "paragraphs"))
    copied = f"SELECT ?, ?, {others} FROM source WHERE digest = ?"
    insert = f"INSERT OR IGNORE INTO source (digest, paragraphs, {others}) {copied}"
    plain_sql(path, insert, digest_of(text), add_text(path, text), digest)
    plain_sql(path, "UPDATE trial SET source_digest = ? WHERE source_digest = ?", digest_of(text), digest)


def planted(problem: Problem) -> str:
    """The text of a kernel that a tsm2-tune made which printed the version that a run has."""
    return render(problem, configuration(128)).text.replace("tsm2-tune.", f"tsm2-tune 0.1.0\n{EVIL}.")


def with_waste(path: Path) -> None:
    """Make a database with remains of trials removed by hand, a killed run, and unused pages."""
    good_database(path)
    with Store.open(path, create=False) as store:
        number = store.add_trial(LATE, trial(450, configuration(512, 16), problem=replace(PROBLEM, m=4096)))
    of_trial = f"measurement WHERE trial_id = {number}"
    plain_sql(path, f"DELETE FROM sample WHERE measurement_id IN (SELECT id FROM {of_trial})")
    plain_sql(path, f"DELETE FROM {of_trial}")
    plain_sql(path, f"DELETE FROM trial WHERE id = {number}")
    owner = f"boot-0:1 1 1 {32 * '0'}"
    plain_sql(path, "INSERT INTO lease VALUES ('g', 'p', ?, 1.0, NULL, NULL, 0)", owner)
    plain_sql(path, "CREATE TABLE gap AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE"
                    " i < 100) SELECT randomblob(4000) AS x FROM n")  # fmt: skip
    plain_sql(path, "DROP TABLE gap")
