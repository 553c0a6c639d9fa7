"""The database's layout: its tables, and how a file is recognised, created and migrated."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress

from sqlalchemy import (
    Column,
    Connection,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)

from tsm2_tune.errors import InputError, StoreError
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.roofline import Ceilings
from tsm2_tune.tuner.best_view import BEST_VIEW as BEST_VIEW
from tsm2_tune.tuner.best_view import best as best
from tsm2_tune.tuner.domains import MOST_JSON

APPLICATION_ID = 0x74736D32  # "tsm2" in ASCII, in SQLite's file header: this file is ours

metadata = MetaData()

run = Table(
    "run",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("device_name", Text, nullable=False),
    Column("device_uuid", Text, nullable=False),
    Column("compute_capability", Text, nullable=False),  # "" for the host
    Column("driver", Text, nullable=False),
    Column("toolkit", Text, nullable=False),
    Column("flags", Text, nullable=False),
    Column("version", Text, nullable=False),
    Column("seed", Integer, nullable=False),
    Column("started_at", Text, nullable=False),
    Column("read_gbytes_per_s", Float, nullable=False),
    Column("copy_gbytes_per_s", Float, nullable=False),
    Column("gflops", Text, nullable=False),  # JSON: dtype -> measured FMA rate
    Column("sms", Integer),  # multiprocessors; NULL of a run from before they were stored
    UniqueConstraint("id", "device_name"),  # what a trial's copy of the name is checked against
)

problem = Table(
    "problem",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("op", Text, nullable=False),
    Column("dtype", Text, nullable=False),
    Column("m", Integer, nullable=False),
    Column("n", Integer, nullable=False),
    Column("k", Integer, nullable=False),
    Column("flops", Integer, nullable=False),
    Column("least_bytes", Integer, nullable=False),
    UniqueConstraint("op", "dtype", "m", "n", "k"),
)

# Of a launch what is not the same for all trials of one source.
LAUNCH_OF_TRIAL = ("rows_per_block", "splits")

source = Table(
    "source",
    metadata,
    Column("digest", Text, primary_key=True),  # SHA-256 of the text
    Column("kernel", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("dtype", Text, nullable=False),
    Column("threads", Integer, nullable=False),
    Column("rows_per_block", Integer, nullable=False),
    Column("smem_bytes", Integer, nullable=False),
    Column("columns_per_block", Integer, nullable=False, server_default="0"),
    Column("splits", Integer, nullable=False, server_default="1"),
    Column("flat_splits", Integer, nullable=False, server_default="64"),
    Column("persistent", Integer, nullable=False, server_default="0"),  # 1 or 0
)

# A configuration is tried once for a device, a problem and a basis: the first UNIQUE keeps it so through kills,
# restarts and two runs at a time. It needs the device's name here; the second foreign key ties it to the run's.
trial = Table(
    "trial",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("run_id", Integer, nullable=False),
    Column("device_name", Text, nullable=False),
    Column("problem_id", ForeignKey("problem.id"), nullable=False),
    Column("family", Text, nullable=False),
    Column("config", Text, nullable=False),
    Column("tunables", Text, nullable=False),  # JSON
    Column("basis", Text, nullable=False),
    Column("source_digest", ForeignKey("source.digest"), nullable=False),
    Column("outcome", Text, nullable=False),
    Column("detail", Text, nullable=False),
    Column("registers", Integer),
    Column("local_bytes", Integer),
    Column("smem_bytes", Integer),
    Column("blocks_per_sm", Integer),
    Column("spill_bytes", Integer),
    Column("guideline_broken", Text),
    Column("verdict_correct", Integer),  # 1 or 0; NULL where it was never compared
    Column("verdict_worst_ratio", Float),
    Column("verdict_detail", Text),
    Column("floor_us", Float, nullable=False),
    Column("compile_seconds", Float, nullable=False),
    Column("total_seconds", Float, nullable=False),
    Column("ended_at", Text, nullable=False),
    Column("compile_limit_seconds", Float),  # under which it was tried; NULL of a trial from before they were stored
    Column("run_limit_seconds", Float),
    Column("full_verdict", Text),  # what the full verification of its kernel tried; NULL where there was none
    Column("rows_per_block", Integer),  # of its launch; NULL of a trial from before, whose launch is its source's
    Column("splits", Integer),
    Column(
        "cache", Text, nullable=False, server_default="clean"
    ),  # state of the L2 in which it was timed, or was to be
    Column("is_between", Integer, nullable=False, server_default="0"),  # 1: of no search, see best_view.py
    UniqueConstraint("device_name", "problem_id", "config", "basis"),
    ForeignKeyConstraint(["run_id", "device_name"], ["run.id", "run.device_name"]),
)

measurement = Table(
    "measurement",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("trial_id", ForeignKey("trial.id"), nullable=False),
    Column("run_id", ForeignKey("run.id"), nullable=False),  # finals may be of a later run than the trial
    # 0: the trial's own; 1, 2, ...: of finals, one for each state of the L2; -1, -2, ...: the own ones of the same
    # trial in other databases, which were imported.
    Column("round", Integer, nullable=False),
    Column("median_us", Float, nullable=False),
    Column("low_us", Float, nullable=False),
    Column("high_us", Float, nullable=False),
    Column("sm_clock_mhz", Float),
    Column("floor_us", Float, nullable=False),  # of the problem, by the ceilings of this measurement's run
    Column("cache", Text, nullable=False, server_default="clean"),
    Column("summary_of", Integer),  # samples, where only their median and its interval are known; else NULL
    UniqueConstraint("trial_id", "round"),
)

sample = Table(
    "sample",
    metadata,
    Column("measurement_id", ForeignKey("measurement.id"), primary_key=True),
    Column("ordinal", Integer, primary_key=True),
    Column("us", Float, nullable=False),
    sqlite_with_rowid=False,
)

# What the vendor's libraries took in a final: in the round of this number, of the run that has it, of the problem.
vendor_measurement = Table(
    "vendor_measurement",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("run_id", ForeignKey("run.id"), nullable=False),
    Column("problem_id", ForeignKey("problem.id"), nullable=False),
    Column("round", Integer, nullable=False),
    Column("library", Text, nullable=False),  # cuBLAS or cuBLASLt
    Column("library_version", Integer, nullable=False),  # 130100 is 13.1.0
    Column("routine", Text, nullable=False),
    Column("verdict_correct", Integer, nullable=False),  # 1 or 0
    Column("verdict_worst_ratio", Float, nullable=False),
    Column("verdict_detail", Text, nullable=False),
    Column("median_us", Float, nullable=False),
    Column("low_us", Float, nullable=False),
    Column("high_us", Float, nullable=False),
    Column("sm_clock_mhz", Float),
    Column("cache", Text, nullable=False, server_default="clean"),
    Column("summary_of", Integer),
    UniqueConstraint("run_id", "problem_id", "round", "library"),
)

vendor_sample = Table(
    "vendor_sample",
    metadata,
    Column("measurement_id", ForeignKey("vendor_measurement.id"), primary_key=True),
    Column("ordinal", Integer, primary_key=True),
    Column("us", Float, nullable=False),
    sqlite_with_rowid=False,
)

# What a run has taken on, so that another one on the same database leaves it; only while the owner lives.
claim = Table(
    "claim",
    metadata,
    Column("device_name", Text, primary_key=True),
    Column("problem", Text, primary_key=True),  # its text
    Column("config", Text, primary_key=True),  # its text, or claims.FINAL
    Column("basis", Text, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("beat_at", Float, nullable=False),  # when the owner last said that it lives; seconds since 1970, UTC
    sqlite_with_rowid=False,
)

Migration = Callable[[Connection], None]


def _add_splits(connection: Connection) -> None:
    """A kernel may split k, and its tiles of C may have fewer columns than n."""
    connection.exec_driver_sql("ALTER TABLE source ADD COLUMN columns_per_block INTEGER NOT NULL DEFAULT 0")
    connection.exec_driver_sql("ALTER TABLE source ADD COLUMN splits INTEGER NOT NULL DEFAULT 1")


def _add_flat_splits(connection: Connection) -> None:
    """How many splits' sums are added up at once is the family's to say; before, it was 64 for all."""
    connection.exec_driver_sql("ALTER TABLE source ADD COLUMN flat_splits INTEGER NOT NULL DEFAULT 64")


def _add_persistent(connection: Connection) -> None:
    """A grid may have as many blocks for every shape; before, each had a tile of C, or a part of k of one."""
    connection.exec_driver_sql("ALTER TABLE source ADD COLUMN persistent INTEGER NOT NULL DEFAULT 0")


UNREADABLE = (InputError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


def _add_floors(connection: Connection) -> None:
    """A measurement has the floor of its own run; before, a final's time stood beside the floor of its trial's."""
    connection.exec_driver_sql("ALTER TABLE measurement ADD COLUMN floor_us FLOAT NOT NULL DEFAULT 0")
    connection.exec_driver_sql("UPDATE measurement SET floor_us = (SELECT floor_us FROM trial WHERE id = trial_id)")
    ceilings = dict[int, Ceilings]()
    stored = connection.exec_driver_sql(
        "SELECT id, read_gbytes_per_s, copy_gbytes_per_s, gflops FROM run WHERE length(gflops) <= ?", (MOST_JSON,)
    )
    for run_id, read, copy, gflops in stored:
        with suppress(*UNREADABLE):
            ceilings[run_id] = Ceilings(read, copy, tuple(json.loads(gflops).items()))
    later = connection.exec_driver_sql(
        "SELECT DISTINCT measurement.run_id, problem_id, m, n, k, dtype, op"
        " FROM measurement JOIN trial ON trial.id = trial_id JOIN problem ON problem.id = problem_id"
        " WHERE measurement.run_id <> trial.run_id"
    )
    for run_id, problem_id, *asked in later.all():
        try:
            floor_us = ceilings[run_id].floor_us(Problem(*asked))
        except UNREADABLE:
            continue  # whoever reads such a row says what is wrong with it
        connection.exec_driver_sql(
            "UPDATE measurement SET floor_us = ?"
            " WHERE run_id = ? AND trial_id IN (SELECT id FROM trial WHERE problem_id = ?)",
            (floor_us, run_id, problem_id),
        )


def _add_limits(connection: Connection) -> None:
    """A trial that timed out is tried again under larger limits; those of older trials are not known."""
    connection.exec_driver_sql("ALTER TABLE trial ADD COLUMN compile_limit_seconds FLOAT")
    connection.exec_driver_sql("ALTER TABLE trial ADD COLUMN run_limit_seconds FLOAT")


def _add_claims(connection: Connection) -> None:
    """Runs on one database divide the work."""
    claim.create(connection)


def _add_full_verdict(connection: Connection) -> None:
    """A winner is verified in full; those of before were not."""
    connection.exec_driver_sql("ALTER TABLE trial ADD COLUMN full_verdict TEXT")


def _add_vendor(connection: Connection) -> None:
    """Finals measure the vendor's libraries too; those of before did not."""
    vendor_measurement.create(connection)
    vendor_sample.create(connection)


def _add_launches(connection: Connection) -> None:
    """Trials that differ only in how one kernel is started have the same source; before, each had its own."""
    for name in LAUNCH_OF_TRIAL:
        connection.exec_driver_sql(f"ALTER TABLE trial ADD COLUMN {name} INTEGER")


def _add_multiprocessors(connection: Connection) -> None:
    """How a kernel is started for a shape that was not tuned depends on the card's multiprocessors."""
    connection.exec_driver_sql("ALTER TABLE run ADD COLUMN sms INTEGER")


def _add_caches(connection: Connection) -> None:
    """Times are of a state of the L2; before, all were of one that what ran last had read full."""
    for table in ("trial", "measurement", "vendor_measurement"):
        columns = connection.exec_driver_sql(f"PRAGMA table_info({table})")
        if "cache" not in [column.name for column in columns]:  # as in a table that was made just now
            connection.exec_driver_sql(f"ALTER TABLE {table} ADD COLUMN cache TEXT NOT NULL DEFAULT 'clean'")


def _add_between(connection: Connection) -> None:
    """Kernels are also timed at shapes that nobody tuned; before, all trials were of a search."""
    connection.exec_driver_sql("ALTER TABLE trial ADD COLUMN is_between INTEGER NOT NULL DEFAULT 0")


def _make_view_anew(_: Connection) -> None:
    """The view of winners is another text with the same rows, and is made anew after every migration."""


def _add_summaries(connection: Connection) -> None:
    """Trials may be imported from a text, which has no samples; and which basis is the newest is told by the time."""
    for table in ("measurement", "vendor_measurement"):
        columns = connection.exec_driver_sql(f"PRAGMA table_info({table})")
        if "summary_of" not in [column.name for column in columns]:  # as in a table that was made just now
            connection.exec_driver_sql(f"ALTER TABLE {table} ADD COLUMN summary_of INTEGER")


# The first takes version 1 to 2, the next 2 to 3, and so on.
MIGRATIONS: tuple[Migration, ...] = (
    _add_splits,
    _add_flat_splits,
    _add_persistent,
    _add_floors,
    _add_limits,
    _add_claims,
    _add_full_verdict,
    _add_vendor,
    _add_launches,
    _add_multiprocessors,
    _add_caches,
    _add_between,
    _make_view_anew,
    _add_summaries,
)


def version() -> int:
    """The schema that this program writes."""
    return 1 + len(MIGRATIONS)


def found_version(connection: Connection, path: str) -> int:
    """The schema of the open file; 0 for an empty database. StoreError for another program's, or a newer one."""
    application_id = connection.exec_driver_sql("PRAGMA application_id").scalar_one()
    found: int = connection.exec_driver_sql("PRAGMA user_version").scalar_one()
    if application_id != APPLICATION_ID:
        if application_id or found or connection.exec_driver_sql("SELECT 1 FROM sqlite_master").first():
            raise StoreError(f"{path} is a database of another program: name another file with --db")
        return 0
    if found > version():
        raise StoreError(
            f"{path} has schema {found}, newer than {version()}, the last that this tsm2-tune knows:"
            " use a newer tsm2-tune, or name another file with --db"
        )
    return found


def upgrade(connection: Connection, found: int) -> None:
    """Bring the file from schema `found` to this program's, inside the transaction that is open."""
    if found == 0:
        metadata.create_all(connection)
        connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")
    else:
        for migrate in MIGRATIONS[found - 1 :]:
            migrate(connection)
        connection.exec_driver_sql("DROP VIEW best")
    connection.exec_driver_sql(BEST_VIEW)
    connection.exec_driver_sql(f"PRAGMA user_version = {version()}")
