"""The tables of the database."""

from __future__ import annotations

from typing import Any

import sqlalchemy
from sqlalchemy import (
    BigInteger,
    Column,
    Dialect,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    MetaData,
    Table,
    TypeDecorator,
    UniqueConstraint,
)

from tsm2_tune.tuner.results.best_view import best as best

APPLICATION_ID = 0x74736D32  # "tsm2" in ASCII; it marks this program's files in SQLite's file header

metadata = MetaData()


class _ServerText(TypeDecorator[str]):
    """A text column on a PostgreSQL server, sorted by bytes as in SQLite.

    NUL characters are replaced, since PostgreSQL cannot store them in a text.
    """

    impl = sqlalchemy.Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        return value.replace("\0", "\ufffd") if isinstance(value, str) else value


Text = sqlalchemy.Text().with_variant(_ServerText(collation="C"), "postgresql")
Integer = sqlalchemy.Integer().with_variant(BigInteger(), "postgresql")  # SQLite's integers have 64 bits

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
    Column("sms", Integer),  # multiprocessors; NULL in runs of versions that did not store them
    UniqueConstraint("id", "device_name"),  # for the foreign key of a trial's copy of the name
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

# Columns of a launch that can differ between trials with the same source.
LAUNCH_OF_TRIAL = ("rows_per_block", "splits")

# Paragraphs of the texts of kernels, each stored once: see paragraphs.py.
paragraph = Table(
    "paragraph",
    metadata,
    Column("key", Text, primary_key=True),  # first 16 digits of the SHA-256 of its text
    Column("text", Text, nullable=False),
)

source = Table(
    "source",
    metadata,
    Column("digest", Text, primary_key=True),  # SHA-256 of the text without comments
    Column("kernel", Text, nullable=False),
    Column("paragraphs", Text, nullable=False),  # keys of the paragraphs of the text, in order, between spaces
    Column("dtype", Text, nullable=False),
    Column("threads", Integer, nullable=False),
    Column("rows_per_block", Integer, nullable=False),
    Column("smem_bytes", Integer, nullable=False),
    Column("columns_per_block", Integer, nullable=False, server_default="0"),
    Column("splits", Integer, nullable=False, server_default="1"),
    Column("flat_splits", Integer, nullable=False, server_default="64"),
    Column("persistent", Integer, nullable=False, server_default="0"),  # 1 or 0
)

# A configuration is tried once for each device, problem and basis. The first UNIQUE constraint ensures this across
# kills, restarts and simultaneous runs. It needs a copy of the device's name; the second foreign key keeps the copy
# equal to the run's name.
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
    Column("verdict_correct", Integer),  # 1 or 0; NULL if the result was never compared
    Column("verdict_worst_ratio", Float),
    Column("verdict_detail", Text),
    Column("floor_us", Float, nullable=False),
    Column("compile_seconds", Float, nullable=False),
    Column("total_seconds", Float, nullable=False),
    Column("ended_at", Text, nullable=False),
    Column("compile_limit_seconds", Float),  # the trial's limits; NULL if its version did not store them
    Column("run_limit_seconds", Float),
    Column("full_verdict", Text),  # the calls of the full verification; NULL if there was none
    Column("rows_per_block", Integer),  # rows per block of its launch; NULL if the launch is the source's
    Column("splits", Integer),
    Column("cache", Text, nullable=False, server_default="clean"),  # L2 cache state in which it was timed
    Column("is_between", Integer, nullable=False, server_default="0"),  # 1: no search tried it, see best_view.py
    # 1: the kernel's code has changed since. The column `basis` is then another digest, see fingerprint.py.
    Column("superseded", Integer, nullable=False, server_default="0"),
    Column("strategy", Text),  # strategy of its search; NULL without a search, or if its version did not store it
    Column("stamp", Integer, nullable=False, server_default="0"),  # see logical_clock.py
    Column("first_basis", Text),  # the original basis of a superseded trial; NULL if not superseded
    # Digests of the fully verified machine code, for each index width; NULL if they were not stored.
    Column("verified_code", Text),
    # Number of configurations in its search space; NULL without a search, or if it was not stored.
    Column("space_configurations", Integer),
    # Why the search ended, a value of search.Why; NULL until it ends, or if it was not stored.
    Column("search_ended", Text),
    UniqueConstraint("device_name", "problem_id", "config", "basis"),
    ForeignKeyConstraint(["run_id", "device_name"], ["run.id", "run.device_name"]),
)

# The condition of the index that finds the newest basis of a family on a device, on which it depends whether a winner
# is stale. The index begins with columns that other queries do not name, so that SQLite does not use it for them.
COUNTS = trial.c.superseded == sqlalchemy.text("0")
newest_of_family = Index(
    "newest_of_family",
    *(trial.c[name] for name in ("cache", "device_name", "family", "stamp", "basis")),
    sqlite_where=COUNTS,
)
newest_stamp = Index("newest_stamp", trial.c.stamp)

measurement = Table(
    "measurement",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("trial_id", ForeignKey("trial.id"), nullable=False),
    Column("run_id", ForeignKey("run.id"), nullable=False),  # the run that measured, maybe later than the trial's run
    # 0: the search's measurement. 1, 2, ...: final comparisons, with a round for each L2 cache state.
    # -1, -2, ...: searches' measurements from imported databases.
    Column("round", Integer, nullable=False),
    Column("median_us", Float, nullable=False),
    Column("low_us", Float, nullable=False),
    Column("high_us", Float, nullable=False),
    Column("sm_clock_mhz", Float),
    Column("floor_us", Float, nullable=False),  # least time of the problem, from this run's measured peak rates
    Column("cache", Text, nullable=False, server_default="clean"),
    Column("summary_of", Integer),  # number of samples, if the row is a summary without them; else NULL
    Column("slowed", Integer),  # samples that were taken while the clock had dropped; NULL if not counted
    Column("final", Text),  # id and time stamp of the final comparison, see logical_clock.py; else NULL
    Column("final_stamp", Integer),
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

# Times of vendor libraries in a final comparison, which is identified by problem, run and number of the round.
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
    Column("slowed", Integer),
    Column("final", Text),
    Column("final_stamp", Integer),
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

# Problems that a run tunes. Other runs leave them to this run until the lease expires: see runs/leases.py.
lease = Table(
    "lease",
    metadata,
    Column("device_name", Text, primary_key=True),
    Column("problem", Text, primary_key=True),  # the problem's text
    Column("owner", Text, nullable=False),  # the run, see runs/owners.py; "" if the lease was released
    Column("expires_at", Float, nullable=False),  # in seconds since 1970, UTC, by the clock of Database.now
    Column("config", Text),  # the configuration that the owner has been trying for a second or more
    Column("suspect", Text),  # the configuration at which the last runs died that had the problem
    Column("deaths", Integer, nullable=False),  # the number of these runs; 0 without a suspect
    sqlite_with_rowid=False,
)

# Kernels that hung or faulted on a device. Later runs on this device skip them: see quarantine.py.
quarantine = Table(
    "quarantine",
    metadata,
    Column("device_name", Text, primary_key=True),
    Column("digest", Text, primary_key=True),  # SHA-256 of the kernel's code, its definitions and its launch
    Column("tools", Text, primary_key=True),  # SHA-256 of compiler, flags and driver
    Column("toolkit", Text, nullable=False),
    Column("driver", Text, nullable=False),
    Column("config", Text, nullable=False),  # of the last failure, like the following columns
    Column("problem", Text, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("detail", Text, nullable=False),
    Column("run_limit_seconds", Float),  # NULL if the kernel faulted
    Column("times", Integer, nullable=False),
    Column("last_at", Text, nullable=False),
    sqlite_with_rowid=False,
)
