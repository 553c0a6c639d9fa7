"""A good database, and what somebody may do to it: any value, any row, any table, any byte."""

from __future__ import annotations

import hashlib
import json
import random
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from functools import cache, wraps
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from tests.databases import LATE
from tests.fabricated import (
    ONE_STATE,
    PROBLEM,
    configuration,
    downgrade,
    final,
    plain_sql,
    trial,
    tuning_run,
    vendor_measurement,
)
from tests.hostile import COLUMNS, Edit, altered, wrong_of
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.families import family_named
from tsm2_tune.generator.families.published import Ism2Config, Tsm2Config
from tsm2_tune.generator.families.staged import StagedFmaConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.tunables import declared
from tsm2_tune.tuner.device.target import Target
from tsm2_tune.tuner.results.fingerprint import basis
from tsm2_tune.tuner.results.storage import schema
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Cache, Outcome, TimeLimits, Verdict
from tsm2_tune.tuner.runs.leases.queries import FINAL
from tsm2_tune.tuner.search.quarantine import quarantined

SKINNY, SMALL, GRAM = (
    Problem(20480, 16, 20480, "f32"),
    Problem(512, 4, 300, "f64"),
    Problem(16, 16, 10**6, "f32", "tn"),
)
RUN = tuning_run()
YESTERDAY = basis("nvcc 12.9", "-arch=sm_90", Cache.CLEAN)  # another compiler's
FAMILIES = ("tsm2", "ism2")  # that a tuning goes on with
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

EVIL = 'extern "C" void evil() {}'
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n) SELECT max(i) FROM n"
SCHEMA = (
    "CREATE TRIGGER t AFTER INSERT ON trial BEGIN DELETE FROM sample; END",
    "CREATE TABLE extra (x)",
    "CREATE INDEX i ON trial (family)",
    "CREATE VIEW v AS SELECT 1",
    "DROP VIEW best",
    "DROP TABLE sample",
    "ALTER TABLE trial ADD COLUMN note TEXT",
    "ALTER TABLE trial RENAME COLUMN detail TO details",
    "ALTER TABLE run DROP COLUMN seed",
    "ALTER TABLE sample RENAME TO samples",
    "PRAGMA application_id = 7",
    *(f"PRAGMA user_version = {version}" for version in (0, 1, 3, 5, 99, -1)),
)
REWRITTEN = (  # parts of statements that create something
    ("trial", "detail TEXT", "detail TEXT COLLATE NOCASE"),
    ("trial", "detail TEXT", "detail TEXT CHECK (length(randomblob(9)) > 3)"),
    ("trial", "registers INTEGER", "registers INTEGER GENERATED ALWAYS AS (1)"),
    ("sample", "us FLOAT", "us BLOB"),
    ("run", "seed INTEGER", "seed"),
    ("paragraph", "text TEXT", "text TEXT DEFAULT (load_extension('x'))"),
    ("best", "WHERE place = 1", "WHERE place = 2"),
    ("best", "SELECT placed", f"SELECT ({ENDLESS}), placed"),
    ("best", "100 * least_us", "100 * 0"),
)  # fmt: skip


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
    failed = {"resources": None, "verdict": None, "measurement": None}
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
        hanging = quarantined(
            TARGET, SMALL, configuration(64, 2), Outcome.TIMED_OUT, "timing took more than 1 s", 1.0
        )
        store.add_trials(RUN, [], hazards=[faulty, hanging])


# Tamperings: each changes one thing of a database.


def odd_value(rng: random.Random, path: Path) -> None:
    """A value that its column may not have, or another one that it may."""
    column = rng.choice(list(COLUMNS.values()))
    stored = rng.choice(plain_sql(path, f"SELECT {column.name} FROM {column.table}"))[0]
    values = rng.choice((wrong_of(column), altered(column, stored)))
    Edit(column, rng.choice(values or (None,)), rng.choice((0, -1))).put(path)


def in_sql(change: Callable[[random.Random, sqlite3.Connection], None]) -> Callable[[random.Random, Path], None]:
    """Return the change of a file by one of a database that is open without any check."""

    @wraps(change)
    def tampered(rng: random.Random, path: Path) -> None:
        with closing(sqlite3.connect(path)) as connection, suppress(sqlite3.Error), connection:
            connection.execute("PRAGMA synchronous = OFF")
            change(rng, connection)

    return tampered


@in_sql
def deleted_rows(rng: random.Random, connection: sqlite3.Connection) -> None:
    table = rng.choice(list(schema.metadata.tables))
    key = rng.choice([c.name for c in schema.metadata.tables[table].columns])
    connection.execute(
        f"DELETE FROM {table} WHERE {key} IN (SELECT {key} FROM {table} ORDER BY random() LIMIT ?)",
        (rng.choice((1, 2, 99)),),
    )


@in_sql
def swapped_rows(rng: random.Random, connection: sqlite3.Connection) -> None:
    table = rng.choice([name for name in schema.metadata.tables if name != "sample"])
    column = rng.choice([c.name for c in schema.metadata.tables[table].columns if c.name not in ("id", "digest")])
    values = [value for (value,) in connection.execute(f"SELECT {column} FROM {table} ORDER BY rowid")]
    for row, value in enumerate(values[1:] + values[:1], 1):
        connection.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (value, row))


@in_sql
def foreign_text(rng: random.Random, connection: sqlite3.Connection) -> None:
    """Another text, with its digest made anew, as whoever prepares a file does."""
    old, keys = rng.choice(connection.execute("SELECT digest, paragraphs FROM source").fetchall())
    by_key = dict(connection.execute("SELECT key, text FROM paragraph").fetchall())
    text = "\n\n".join(by_key[key] for key in keys.split())
    new = rng.choice((EVIL, f"{text}\n{EVIL}", text.replace("tsm2-tune.", f"tsm2-tune 0.1.0\n{EVIL}"), "", "\x00"))
    digest = hashlib.sha256(new.encode()).hexdigest()
    connection.execute("INSERT OR IGNORE INTO paragraph VALUES (?, ?)", (digest[:16], new))
    connection.execute("UPDATE source SET paragraphs = ?, digest = ? WHERE digest = ?", (digest[:16], digest, old))
    connection.execute("UPDATE trial SET source_digest = ? WHERE source_digest = ?", (digest, old))
    if rng.random() < 0.5:
        connection.execute("UPDATE run SET version = ?", (f"0.1.0\n{EVIL}",))


@in_sql
def other_config(rng: random.Random, connection: sqlite3.Connection) -> None:
    """Another configuration, text and tunables at one: of no space, of another family, or just another one."""
    ladder, gemm = ({one.name: 1 for one in declared(family_named(name).config_type)} for name in ("ladder", "gemm"))
    at_one: tuple[tuple[str, str, dict[str, object]], ...] = (
        *(
            (config.family, config.text, config.tunables)
            for config in (
                *(Tsm2Config("v3", *values) for values in ((96, 8, 4), (128, 8, 0), (0, 0, 0), (64, 8, 4))),
                Tsm2Config("v9", 128, 8, 4),
                Tsm2Config("v2", 2**31 - 1, 1, 1),
                *(Ism2Config(optimisation, 128, 8, 8, 4) for optimisation in (7, 1)),
            )
        ),
        ("ladder", "ladder:step=none,block=1x1x1,thread=1x1", ladder | {"step": "none"}),
        ("gemm", "gemm:block=1x1x1,threads=1x1,threads_a=1x1,threads_b=1x1,read=xx", gemm | {"read": "xx"}),
        ("bygone", "bygone:threads=1", {"threads": 1}),
    )
    family, text, tunables = rng.choice(at_one)
    connection.execute(
        "UPDATE trial SET family = ?, config = ?, tunables = ? WHERE id = ?",
        (family, text, json.dumps(tunables), rng.randint(1, 8)),
    )


def corrupted_bytes(rng: random.Random, path: Path) -> None:
    """Other bytes, pages that have changed places, and an end that is gone."""
    content = bytearray(path.read_bytes())
    size = int.from_bytes(content[16:18], "big") or 4096
    pages, kind = len(content) // size, rng.randrange(6)
    one, other = (slice(page * size, (page + 1) * size) for page in rng.sample(range(1, pages), 2))
    if kind == 0:
        for _ in range(rng.choice((1, 3, 20))):
            content[rng.randrange(len(content))] = rng.randrange(256)
    elif kind == 1:
        content[one], content[other] = content[other], content[one]
    elif kind == 2:
        content[one] = content[other]
    elif kind == 3:
        del content[rng.randrange(len(content)) :]
    elif kind == 4:
        content[rng.randrange(100)] = rng.randrange(256)
    else:  # in a page's head and cell pointers
        content[one.start + rng.randrange(32)] = rng.randrange(256)
    path.write_bytes(content)


TAMPERINGS: tuple[Callable[[random.Random, Path], None], ...] = (
    *(odd_value,) * 10, deleted_rows, swapped_rows, *(foreign_text,) * 2, *(other_config,) * 2,
    *(corrupted_bytes,) * 2,
)  # fmt: skip


def tamper(path: Path, rng: random.Random) -> str:
    """Change one thing in the database; returns what kind of thing."""
    change = rng.choice(TAMPERINGS)
    if rng.random() < 0.05:
        downgrade(path)
    change(rng, path)
    return change.__name__


def with_waste(path: Path) -> None:
    """Make a database with remains of trials removed by hand, a killed run, and unused pages."""
    good_database(path)
    with Store.open(path, create=False) as store:
        number = store.add_trial(LATE, trial(450, configuration(512, 16), problem=replace(PROBLEM, m=4096)))
    plain_sql(
        path, f"DELETE FROM sample WHERE measurement_id IN (SELECT id FROM measurement WHERE trial_id = {number})"
    )
    plain_sql(path, f"DELETE FROM measurement WHERE trial_id = {number}")
    plain_sql(path, f"DELETE FROM trial WHERE id = {number}")
    plain_sql(path, f"INSERT INTO claim (device_name, problem, config, basis, owner, beat_at) VALUES ('g', 'p',"
                    f" '{FINAL}', '', 'boot-0:1 1 1 {32 * '0'}', 1.0)")  # fmt: skip
    plain_sql(path, "CREATE TABLE gap AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE"
                    " i < 100) SELECT randomblob(4000) AS x FROM n")  # fmt: skip
    plain_sql(path, "DROP TABLE gap")
