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

APPLICATION_ID = 0x74736D32  # "tsm2" in ASCII, in SQLite's file header: this file is ours

metadata = MetaData()


class _ServerText(TypeDecorator[str]):
    """Text of a PostgreSQL server, in the order that SQLite has it. A server stores no NUL."""

    impl = sqlalchemy.Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        return value.replace("\0", "\ufffd") if isinstance(value, str) else value


Text = sqlalchemy.Text().with_variant(_ServerText(collation="C"), "postgresql")
Integer = sqlalchemy.Integer().with_variant(BigInteger(), "postgresql")  # SQLite's have 64 bits

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
    # 1: this program made another kernel of the configuration when it was last tuned; then its basis is none of now.
    Column("superseded", Integer, nullable=False, server_default="0"),
    Column("strategy", Text),  # of the search that tried it; NULL where none did, or from before they were stored
    Column("stamp", Integer, nullable=False, server_default="0"),  # see logical_clock.py
    Column("first_basis", Text),  # a superseded trial's basis when it was tried; NULL of one that counts
    # Digests of the machine code that full_verdict is of, by each width of index; NULL where nobody stored it.
    Column("verified_code", Text),
    # Configurations in the space of the search that tried it; NULL if none did, or if nobody stored it.
    Column("space_configurations", Integer),
    # Why that search ended, a value of search.Why; NULL until it ends, and if nobody stored it.
    Column("search_ended", Text),
    UniqueConstraint("device_name", "problem_id", "config", "basis"),
    ForeignKeyConstraint(["run_id", "device_name"], ["run.id", "run.device_name"]),
)

# A winner is stale by the newest basis of its family on its device, which is found without a look at other trials. It
# begins with what other queries do not name, so that SQLite takes it for none of these.
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
    Column("slowed", Integer),  # samples that were taken while the clock had dropped; NULL where nobody counted
    Column("final", Text),  # identity and stamp of the final, see logical_clock.py; NULL of a trial's own times
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

# What a run has taken on, so that another one on the same database leaves it; only while the owner lives.
claim = Table(
    "claim",
    metadata,
    Column("device_name", Text, primary_key=True),
    Column("problem", Text, primary_key=True),  # its text
    Column("config", Text, primary_key=True),  # its text, or one of claims.NO_CONFIGURATIONS
    Column("basis", Text, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("beat_at", Float, nullable=False),  # when the owner last said that it lives; seconds since 1970, UTC
    # Owners that died while they tried the configuration, and the owner of now where it has tried it for a while.
    Column("attempts", Integer, nullable=False, server_default="0"),
    sqlite_with_rowid=False,
)

# Kernels that hung or faulted on a device, which leaves them out: see quarantine.py.
quarantine = Table(
    "quarantine",
    metadata,
    Column("device_name", Text, primary_key=True),
    Column("digest", Text, primary_key=True),  # SHA-256 of the kernel's code, its definitions and its launch
    Column("tools", Text, primary_key=True),  # SHA-256 of compiler, flags and driver
    Column("toolkit", Text, nullable=False),
    Column("driver", Text, nullable=False),
    Column("config", Text, nullable=False),  # of the last time, and so are the following
    Column("problem", Text, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("detail", Text, nullable=False),
    Column("run_limit_seconds", Float),  # NULL where it faulted
    Column("times", Integer, nullable=False),
    Column("last_at", Text, nullable=False),
    sqlite_with_rowid=False,
)
