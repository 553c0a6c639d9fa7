"""Each column of a database with values that no row of this program has: who reads it refuses it in a sentence."""

from __future__ import annotations

import math
import re
import sys
import tempfile
from collections.abc import Iterable
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.fabricated import BASIS, GPU, PROBLEM, configuration, plain_sql, trial, tuning_run, vendor_measurement
from tests.hostile import COLUMNS, MOST_INT, TABLES, Edit, altered, run_on, wrong_of
from tests.simulated import TARGET
from tests.tampering import SKINNY, YESTERDAY
from tsm2_tune.errors import StoreError
from tsm2_tune.tuner.measure.timing import median_interval
from tsm2_tune.tuner.results.merge import files
from tsm2_tune.tuner.results.storage import schema
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Cache, Final, Measurement, Outcome, TimeLimits
from tsm2_tune.tuner.search.quarantine import quarantined

C128 = configuration(128)


@cache
def _content() -> bytes:
    """A database whose last row of each table is of one winner; one more trial failed before it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "results.db")
        lost: dict[str, Any] = {"resources": None, "verdict": None, "measurement": None, "full_verdict": None}
        with Store.open(path, create=True) as store:
            failed = trial(1, C128, basis=YESTERDAY, outcome=Outcome.COMPILE_FAILED, **lost)
            store.add_trial(tuning_run(), failed)
            store.add_trial(tuning_run(), trial(500, C128, limits=TimeLimits(120.0, 60.0)))
            samples = tuple(485.0 + us for us in range(20))  # of which the last one is outside the interval
            timed = Measurement(samples, *median_interval(samples), sm_clock_mhz=1980.0)
            last = Final(PROBLEM, ((C128, timed),), (vendor_measurement(700),))
            store.add_final(tuning_run(), last, ["tsm2"], BASIS)
            fault = quarantined(TARGET, SKINNY, configuration(32), Outcome.CRASHED, "an illegal address")
            store.add_trials(tuning_run(), [], hazards=[fault])
        return path.read_bytes()


def of(*names: str) -> set[str]:
    """The columns of these names, such as trial.id, or all columns of a table."""
    return {one for one in COLUMNS if one in names or one.partition(".")[0] in names}


EVERY = set(COLUMNS)
DANGLING = of("run.id", "measurement.trial_id", "measurement.run_id", "trial.problem_id", "problem.id")
DANGLING |= of("vendor_measurement.run_id", "vendor_measurement.problem_id")
FINAL_OF_VENDOR = of("vendor_measurement.round", "vendor_measurement.cache")  # by which it is found
CHOSEN = of(*(f"trial.{one}" for one in ("outcome", "cache", "superseded", "stamp", "verdict_correct")))
SHOWN = of("trial", *(f"problem.{one}" for one in ("op", "dtype", "m", "n", "k")), "measurement.median_us")
SEARCHED = SHOWN - of(*(f"trial.{one}" for one in ("device_name", "family", "basis", "superseded")), "problem")
SEARCHED |= of("run.driver", *(f"vendor_measurement.{one}" for one in ("library", "library_version", "median_us")))
MODULE = "export --output - --no-binaries --format module"
READERS: dict[str, set[str]] = {  # the columns that a command reads, none of which it may pass over
    "best": EVERY - of("quarantine") - FINAL_OF_VENDOR - (CHOSEN - of("trial.outcome")),
    MODULE: EVERY - of("quarantine") - FINAL_OF_VENDOR,
    "export --output - --format t4": EVERY - of("quarantine"),
    "show 2 --json": EVERY - of("quarantine", "vendor_measurement", "vendor_sample") | DANGLING,
    "show": SHOWN - of("trial.tunables") | DANGLING,
    "space --audit --device NVIDIA_H200": SHOWN | DANGLING,
    "model --shapes 64x64x64 --device NVIDIA_H200": of("run", "trial.device_name") | DANGLING,
    "quarantine": of("quarantine") | DANGLING,
    "db check": EVERY,
    "import": EVERY,
    "search": SEARCHED,
    "report --output -": EVERY - of("quarantine", "trial.verdict_correct", "trial.stamp") - FINAL_OF_VENDOR,
}
# Columns by which rows are chosen: with another value there may be no winner, and no time of a vendor.
CHOOSING = CHOSEN | FINAL_OF_VENDOR | of("measurement.round")
LAUNCH = ("kernel", "dtype", "threads", "smem_bytes", "columns_per_block", "flat_splits", "persistent")
OF_RESULT = ("family", "outcome", "verdict_correct", "superseded", "rows_per_block", "splits", "tunables")
TIMES = ("median_us", "low_us", "high_us", "summary_of")
# Columns whose values follow from others, so that no other value of the domain is right in them.
BOUND = of(
    *(f"problem.{one}" for one in ("op", "m", "n", "k", "flops", "least_bytes")), "paragraph", "source.digest",
    "source.paragraphs", *(f"trial.{one}" for one in ("run_id", "config", "source_digest")), "run.id",
    *(f"{table}.{one}" for table in ("measurement", "vendor_measurement") for one in ("id", *TIMES)),
    "measurement.run_id", "sample", "vendor_sample.us", "vendor_sample.measurement_id",
)  # fmt: skip
FOLLOWING: dict[str, set[str]] = {
    "best": BOUND | DANGLING,
    "show 2": BOUND - of("vendor_measurement", "vendor_sample") | DANGLING,
    MODULE: BOUND | of(*(f"source.{one}" for one in LAUNCH), *(f"trial.{one}" for one in OF_RESULT)),
    "db check": BOUND | DANGLING | of("run.device_name", "trial.device_name", "trial.basis")
    | of("trial.cache", "measurement.cache", "vendor_measurement.cache"),
    "import": DANGLING | of("run.device_name", "trial.device_name"),  # it reads rows as the check does
    "search": of("trial.config", "trial.tunables", "trial.verdict_correct") | DANGLING,
    "quarantine": of("quarantine.outcome") | DANGLING,
}  # fmt: skip
# Right, too: the values of the source, the other trial, and another fault.
ALLOWED = {
    ("trial.rows_per_block", None),
    ("trial.splits", None),
    ("measurement.trial_id", 1),
    ("quarantine.outcome", "timed-out"),
}
PARTS = ("registers", "local_bytes", "smem_bytes", "blocks_per_sm", "verdict_detail", "verdict_worst_ratio")
NOT_HERE = {  # values that are right in other rows
    *((f"trial.{one}", None) for one in PARTS),
    *((f"{one}.slowed", MOST_INT) for one in ("measurement", "vendor_measurement")),
    *((f"{one}.verdict_worst_ratio", math.inf) for one in ("trial", "vendor_measurement")),
}
NAMED = re.compile(  # what is wrong, in a refusal; or what is missing, where a row is not found
    r"(trial|vendor measurement|run|quarantined kernel) -?\d+ (is not as|is ok, but|is in|has)"
    r"|has a (trial|measurement|vendor measurement) \(row \d+|rows? of \w+ of an? \w+ that does not exist"
    r"|refused by SQLite \(Could not decode|nothing to (audit|export)|has no (trial yet|run on)"
)
UNIT = {"quarantine", "search"}  # which take no time


def by_layer(commands: Iterable[str]) -> list[Any]:
    """Return the commands as parameters, of which the slow ones are marked."""
    return [one if one in UNIT else pytest.param(one, marks=pytest.mark.slow) for one in commands]


@pytest.fixture
def victim(
    path: Path, fake_nvcc: None, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A database, beside no packages and processes that a refusal needs not."""
    monkeypatch.setitem(sys.modules, "vl_convert", SimpleNamespace(javascript_bundle=lambda snippet: snippet))
    monkeypatch.setattr(
        files, "workplace", lambda parent: nullcontext(SimpleNamespace(folder=tmp_path_factory.mktemp("copy")))
    )
    path.write_bytes(_content())
    return path


def ask(command: str, path: Path) -> tuple[str, str]:
    """Ask a command of the database, or a search. Return why it is refused, or "", and what it says."""
    if command != "search":
        return run_on(path, *(one.replace("_", " ") for one in command.split()))
    try:
        with Store.open(path, create=False) as store:
            history = store.history(GPU, PROBLEM, ("tsm2",), BASIS)
            found: list[Any] = [history.tried(), history.final_configs(), history.vendor_of_last_final()]
            found += [store.searched(GPU, Cache.CLEAN, PROBLEM), store.vendor_us(GPU, PROBLEM, Cache.CLEAN)]
    except StoreError as error:
        return str(error), ""
    return "", str(found)


@pytest.mark.parametrize("command", by_layer(READERS))
def test_a_value_outside_its_domain_is_refused_where_it_is_read(command: str, victim: Path) -> None:
    """Each column has one of its wrong values, for each command another one."""
    refusal, right = ask(command, victim)
    assert refusal == ""
    start, passed = list(READERS).index(command), dict[str, str]()
    row = 0 if command == "show" else -1  # the time of the search, not of the final
    for name, column in COLUMNS.items():
        values = wrong_of(column)
        at = start * len(values) // len(READERS)
        edit = next(one for one in (Edit(column, two, row) for two in values[at:] + values[:at]) if one.put(victim))
        refusal, found = ask(command, victim)
        is_unread = name not in READERS[command] and (found == right or name in CHOOSING or command == "search")
        if not (NAMED.search(refusal) or is_unread):
            passed[str(edit)] = refusal or found
        victim.write_bytes(_content())
    assert passed == {}


@pytest.mark.parametrize("command", by_layer(FOLLOWING))
def test_a_value_that_contradicts_others_is_refused(command: str, victim: Path) -> None:
    passed = set[str]()
    not_here = NOT_HERE if command not in ("show 2", "search", "quarantine") else set()
    for name, column in COLUMNS.items():
        row = 0 if column is schema.sample.c.us else -1
        stored = plain_sql(victim, f"SELECT {column.name} FROM {column.table} ORDER BY 1")[row][0]
        values = altered(column, stored)
        bound = values[-3:] if name in FOLLOWING[command] else ()  # the nearest ones, and NULL
        for value in (*(one for one in values if (name, one) in not_here), *bound):
            edit = Edit(column, value, row)
            if (name, value) not in ALLOWED and edit.put(victim):
                if not ask(command, victim)[0]:
                    passed.add(str(edit))
                victim.write_bytes(_content())
    assert passed == set()


def test_a_sample_is_checked_though_it_changes_no_interval(victim: Path) -> None:
    assert Edit(COLUMNS["sample.us"], math.inf, -1).put(victim)
    assert "us = inf is not a value of this column" in ask("best", victim)[0]


ALONE = {  # tables whose rows no other row needs, and for a trial those of the vendor
    "show 2": {"quarantine", "measurement", "vendor_measurement", "vendor_sample"},
    "db check": {"quarantine"},
}


@pytest.mark.parametrize("command", ["best", "show 2", "import", "db check"])
def test_a_missing_row_that_another_one_needs_is_refused(command: str, victim: Path) -> None:
    passed = set[str]()
    for table in TABLES:
        victim.write_bytes(_content())
        key = ", ".join(one.name for one in table.primary_key)
        last = f"SELECT {key} FROM {table} ORDER BY {key} DESC LIMIT 1"
        plain_sql(victim, f"DELETE FROM {table} WHERE ({key}) = ({last})")
        if not ask(command, victim)[0]:
            passed.add(table.name)
    assert passed <= ALONE.get(command, {"quarantine", "measurement", "vendor_measurement"})
