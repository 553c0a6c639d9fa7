"""Facts of databases for docs/scale.md: sizes, a server's processor time, and the rows that searches store."""

from __future__ import annotations

import lzma
import math
import os
import sqlite3
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import patch

from sqlalchemy import and_, create_engine, insert, literal, select

import tsm2_tune
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results import records, upsert
from tsm2_tune.tuner.results.storage import schema
from tsm2_tune.tuner.results.storage.database import Database
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.runs.leases import Leases

RECORDED = Path(__file__).parent / "results/h100-pack.db.xz"
CACHED_SECONDS = 0.2  # loading a cached binary takes less than this
HOST_SHAPES, HOST_TRIALS = ("64x2x64", "64x3x64", "64x4x64"), 6  # shapes and trials of a run on the CPU
PARENT, USED = 1, slice(11, 15)  # indices in the fields of /proc/PID/stat, counted from the third field
IN_FILE = "SELECT tbl_name, sum(pgsize) FROM dbstat JOIN sqlite_master USING (name) GROUP BY tbl_name"
ON_SERVER = "SELECT relname, pg_total_relation_size(oid) FROM pg_class WHERE relkind = 'r' AND relnamespace = {here}"
HERE = "(SELECT oid FROM pg_namespace WHERE nspname = current_schema())"
COUNT = "SELECT count(*) FROM trial"
TEXTS = "SELECT count(*), count(DISTINCT source_digest) FROM trial"
IN_FINALS = """
SELECT avg(samples) FROM (
  SELECT count(*) AS samples FROM sample JOIN measurement ON measurement.id = measurement_id
  WHERE round > 0 GROUP BY measurement_id)
"""


def is_address(name: str) -> bool:
    """Return whether the database is on a server."""
    return "://" in name


def rows_of(name: str, query: str) -> list[Any]:
    """Return the rows that a query returns."""
    if not is_address(name):
        with closing(sqlite3.connect(name)) as connection:
            return connection.execute(query).fetchall()
    engine = create_engine(name)
    try:
        with engine.connect() as connection:
            return list(connection.exec_driver_sql(query).all())
    finally:
        engine.dispose()


def crowd(database: Database, device: str, like: Problem, problems: Iterable[Problem]) -> None:
    """Fill a database: copy the trials of the problem `like` to each of `problems`, without timing samples."""
    trial, measured, new = schema.trial, schema.measurement, schema.trial.alias()
    facts = [column for column in trial.columns if column.name not in ("id", "problem_id")]
    times = [column for column in measured.columns if column.name not in ("id", "trial_id")]
    with database.transaction() as connection:
        is_of = trial.c.problem_id == upsert.found(connection, schema.problem, records.problem_key(like))
    is_like = and_(trial.c.device_name == device, is_of)
    is_same = and_(*(new.c[name] == trial.c[name] for name in ("device_name", "config", "basis")))
    for problem in problems:
        with database.transaction(writes=True) as connection:
            number = upsert.added(connection, schema.problem, records.problem_values(problem))
            copied = select(literal(number), *facts).where(is_like)
            connection.execute(insert(trial).from_select(["problem_id", *(one.name for one in facts)], copied))
            of_new = and_(is_same, new.c.problem_id == number)
            timed = select(new.c.id, *times).select_from(measured.join(trial).join(new, of_new)).where(is_like)
            connection.execute(insert(measured).from_select(["trial_id", *(one.name for one in times)], timed))


def version(name: str) -> str:
    """Return the name and version of the database."""
    if not is_address(name):
        return f"SQLite {sqlite3.sqlite_version}"
    return f"PostgreSQL {rows_of(name, 'SHOW server_version')[0][0].split()[0]}"


def trials(name: str) -> int:
    """Return the number of trials in the database."""
    return int(rows_of(name, COUNT)[0][0])


def tables(name: str) -> dict[str, dict[str, int]]:
    """Return the rows and bytes of each table, including its indices."""
    sizes = rows_of(name, ON_SERVER.format(here=HERE) if is_address(name) else IN_FILE)
    counts = {table: rows_of(name, f'SELECT count(*) FROM "{table}"')[0][0] for table, _ in sizes}
    return {table: {"rows": counts[table], "bytes": int(size)} for table, size in sorted(sizes)}


def processor_seconds(name: str) -> float:
    """Return the processor seconds of this process for SQLite, else of the server, which runs on this machine."""
    if not is_address(name):
        return time.process_time()
    folder = Path(rows_of(name, "SHOW data_directory")[0][0])
    first = int((folder / "postmaster.pid").read_text().split()[0])
    used = sum(sum(fields[:4]) for pid, parent, fields in _processes() if pid == first or parent == first)
    return used / os.sysconf("SC_CLK_TCK")


def _processes() -> Iterator[tuple[int, int, list[int]]]:
    """Return each process with its parent and the clock ticks that it and its ended children have used."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # the process has ended
            continue
        yield int(folder.name), int(fields[PARENT]), [int(one) for one in fields[USED]]


def recorded() -> dict[str, Any]:
    """Return facts of a recorded database: how kernel sources grow with trials, and their compile time.

    The number of sources is modelled as a power of the number of trials. The exponent `texts_grow_by` is the mean
    over two halves of the problems, each compared with all problems.
    """
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "recorded.db"
        copy.write_bytes(lzma.decompress(RECORDED.read_bytes()))
        name = str(copy)
        ((trials, texts),) = rows_of(name, TEXTS)
        halves = [rows_of(name, f"{TEXTS} WHERE problem_id % 2 = {half}")[0] for half in (0, 1)]
        growths = [math.log(texts / some) / math.log(trials / of) for of, some in halves]
        compiled = f"SELECT avg(compile_seconds) FROM trial WHERE compile_seconds > {CACHED_SECONDS}"
        return {
            "file": RECORDED.name,
            "trials": trials,
            "texts": texts,
            "texts_grow_by": statistics.mean(growths),
            "text_bytes": rows_of(name, "SELECT avg(length(text)) FROM source")[0][0],
            "compile_seconds": rows_of(name, compiled)[0][0],
            "samples_of_final": rows_of(name, IN_FINALS)[0][0],
        }


def asked_of_a_problem() -> dict[str, float]:
    """Return the database calls of a CPU run per problem, without leases, trials and renewals."""
    asked = Counter[str]()

    def counted(of: type, method: str) -> Any:
        """Return a patch that counts calls of a method in the main thread. Renewals come from another thread."""
        own = getattr(of, method)

        def counting(self: Any, *arguments: Any, **named: Any) -> Any:
            is_asked = method != "transaction" or named.get("writes", False)
            asked[method] += is_asked and threading.current_thread() is threading.main_thread()
            return own(self, *arguments, **named)

        return patch.object(of, method, counting)

    with (
        tempfile.TemporaryDirectory() as folder,
        counted(Database, "transaction"),
        counted(Leases, "take"),
        counted(Leases, "release"),
        counted(Store, "add_trials"),
        counted(Store, "best"),
    ):
        path = Path(folder) / "results.db"
        tsm2_tune.tune(HOST_SHAPES, device="cpu", db=path, family="tsm2", max_trials=HOST_TRIALS, pairs=False)
    writes = asked["transaction"] - asked["take"] - asked["release"] - asked["add_trials"]
    return {"writes": writes / len(HOST_SHAPES), "winners": asked["best"] / len(HOST_SHAPES)}
