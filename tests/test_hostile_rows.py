"""Each column of a database with values that no row of this program has: who reads it refuses it in a sentence."""

from __future__ import annotations

import math
import re
import sys
import tempfile
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Column

from tests.fabricated import BASIS, GPU, PROBLEM, configuration, plain_sql, trial, tuning_run, vendor_measurement
from tests.hostile import COLUMNS, DATE, HASH, NO_LINES, TABLES, Edit, altered, right_of, run_on, wrong_of
from tests.simulated import TARGET
from tests.tampering import SKINNY, YESTERDAY
from tsm2_tune.errors import StoreError
from tsm2_tune.tuner.measure.timing import median_interval
from tsm2_tune.tuner.results import domains
from tsm2_tune.tuner.results.best_view import best
from tsm2_tune.tuner.results.merge import files
from tsm2_tune.tuner.results.storage import schema
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import MOST_TEXT, Cache, Final, Measurement, Outcome, TimeLimits, in_a_line
from tsm2_tune.tuner.results.validation import checked, domain_of
from tsm2_tune.tuner.search.quarantine import quarantined

C128 = configuration(128)

# Domains

LONG = (domains.SENTENCE, domains.KERNEL_TEXT, domains.JSON)  # which are printed by lines, or not at all
NEVER: dict[type, tuple[Any, ...]] = {  # values that no column of the type may contain
    str: (b"", 7, 1.5, ["a"], {}, "\ud800", (2**19 + 1) * "x"),
    int: ("", "7", 1.5, math.nan, b"", [1], 2**63, -(2**31), 10**400),
    float: ("", "7", b"", [1.0], math.nan, -math.inf, -1.0),
}
RIGHT_AND_WRONG: dict[str, tuple[Any, Any]] = {  # a value that a column may have, and one that it may not
    "source.threads": (1024, 1025),
    "source.smem_bytes": (232448, 232449),
    "source.splits": (65535, 65536),
    "run.sms": (65536, 65537),
    "trial.stamp": (2**62, 2**62 + 1),
    "measurement.summary_of": (4096, 4097),
    "measurement.median_us": (1e15, 1.1e15),
    "trial.detail": (2**14 * "x", (2**14 + 1) * "x"),
    "run.driver": (1000 * "x", 1001 * "x"),
    "run.started_at": (DATE, "2026-13-01T00:00:00Z"),
    "trial.source_digest": (HASH, HASH.upper()),
    "trial.config": ("tsm2:version=v3,threads=128", "../tsm2"),
    "trial.outcome": ("timed-out", "fine"),
    "vendor_measurement.routine": ("cublasLtMatmul #3", "mkl"),
}


@pytest.mark.parametrize("column", [*COLUMNS.values(), *schema.lease.columns, *best.columns], ids=str)
def test_a_column_refuses_what_would_harm(column: Column[Any]) -> None:
    kind, end = domain_of(column).kind, RIGHT_AND_WRONG.get(str(column))
    never = [*NEVER[kind], *(NO_LINES if kind is str and domain_of(column) not in LONG else ())]
    for value in (*never, *([] if column.nullable else [None]), *(end[1:] if end else ())):
        with pytest.raises(
            (TypeError, ValueError), match=rf"^{column.name} = .* (of this column|of type)"
        ) as refused:
            checked({column.name: value}, [column])
        assert len(str(refused.value)) < 250
    assert any(one is not None for one in right_of(column))
    assert end is None or checked({column.name: end[0]}, [column]) == {column.name: end[0]}


def test_names_are_stored_as_a_line() -> None:
    assert in_a_line("a  b\tc\n\x1b[31md\u2028") == "a  b c  [31md "
    assert len(in_a_line("x" * 10_000)) == MOST_TEXT


# Readers


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


MODULE = "export --output - --no-binaries --format module"
READERS = (
    "best", MODULE, "export --output - --format t4", "show 2 --json", "show", "space --audit --device NVIDIA_H200",
    "model --shapes 64x64x64 --device NVIDIA_H200", "quarantine", "db check", "import", "search", "report --output -",
)  # fmt: skip
EVERYTHING = ("db check", "import")  # they read every column
# Columns by which rows are chosen: with another value there is no winner, and no time of a vendor.
CHOSEN = of(*(f"trial.{one}" for one in ("outcome", "cache", "superseded", "stamp", "verdict_correct")))
CHOSEN |= of("measurement.round", "vendor_measurement.round", "vendor_measurement.cache")
# What a search reads; of others with another value it finds nothing.
SEARCHED = of("trial", "run.driver", "measurement.median_us")
SEARCHED |= of(*(f"vendor_measurement.{one}" for one in ("library", "library_version", "median_us")))
SEARCHED -= of(*(f"trial.{one}" for one in ("device_name", "family", "basis", "superseded")))
DANGLING = of("run.id", "measurement.trial_id", "measurement.run_id", "trial.problem_id", "problem.id")
DANGLING |= of("vendor_measurement.run_id", "vendor_measurement.problem_id")
LAUNCH = ("kernel", "dtype", "threads", "smem_bytes", "columns_per_block", "flat_splits", "persistent")
OF_RESULT = ("family", "outcome", "verdict_correct", "superseded", "rows_per_block", "splits")
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
    "search": of("trial.config", "trial.tunables", "trial.verdict_correct") | DANGLING,
}  # fmt: skip
# Right, too: the values of the source, and the other trial.
ALLOWED = {("trial.rows_per_block", None), ("trial.splits", None), ("measurement.trial_id", 1)}
NAMED = re.compile(  # what is wrong, in a refusal; or what is missing, where a row is not found
    r"(trial|vendor measurement|run|quarantined kernel) -?\d+ (is not as|is ok, but|is in|has)"
    r"|has a (trial|measurement|vendor measurement) \(row \d+|rows? of \w+ of an? \w+ that does not exist"
    r"|refused by SQLite \(Could not decode|nothing to (audit|export)|has no (trial yet|run on)"
)


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


@pytest.mark.slow
@pytest.mark.parametrize("command", READERS)
def test_a_value_outside_its_domain_is_refused_where_it_is_read(command: str, victim: Path) -> None:
    """Each column has one of its wrong values, for each command another one."""
    refusal, right = ask(command, victim)
    assert refusal == ""
    start, passed = READERS.index(command), dict[str, str]()
    row = 0 if command == "show" else -1  # the time of the search, not of the final
    for name, column in COLUMNS.items():
        values = wrong_of(column)
        at = start * len(values) // len(READERS)
        edit = next(one for one in (Edit(column, two, row) for two in values[at:] + values[:at]) if one.put(victim))
        refusal, found = ask(command, victim)
        is_unread = found == right or name in CHOSEN if command != "search" else name not in SEARCHED
        if not (NAMED.search(refusal) or (is_unread and command not in EVERYTHING)):
            passed[str(edit)] = refusal or found
        victim.write_bytes(_content())
    assert passed == {}


@pytest.mark.slow
@pytest.mark.parametrize("command", FOLLOWING)
def test_a_value_that_contradicts_others_is_refused(command: str, victim: Path) -> None:
    passed = set[str]()
    for name in sorted(FOLLOWING[command]):
        column = COLUMNS[name]
        row = 0 if column is schema.sample.c.us else -1
        stored = plain_sql(victim, f"SELECT {column.name} FROM {column.table} ORDER BY 1")[row][0]
        for value in altered(column, stored)[-3:]:  # the nearest ones, and NULL
            edit = Edit(column, value, row)
            if (name, value) not in ALLOWED and edit.put(victim):
                if not ask(command, victim)[0]:
                    passed.add(str(edit))
                victim.write_bytes(_content())
    assert passed == set()


def test_a_sample_is_checked_though_it_changes_no_interval(victim: Path) -> None:
    assert Edit(COLUMNS["sample.us"], math.inf, -1).put(victim)
    assert "us = inf is not a value of this column" in ask("best", victim)[0]


ALONE = {"quarantine", "measurement", "vendor_measurement"}  # tables whose rows no other row needs


@pytest.mark.parametrize("command", ["best", "import", "db check"])
def test_a_missing_row_that_another_one_needs_is_refused(command: str, victim: Path) -> None:
    passed = set[str]()
    for table in TABLES:
        victim.write_bytes(_content())
        key = ", ".join(one.name for one in table.primary_key)
        last = f"SELECT {key} FROM {table} ORDER BY {key} DESC LIMIT 1"
        plain_sql(victim, f"DELETE FROM {table} WHERE ({key}) = ({last})")
        if not ask(command, victim)[0]:
            passed.add(table.name)
    assert passed <= ALONE
