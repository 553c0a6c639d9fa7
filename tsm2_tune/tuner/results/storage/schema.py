"""The tables of the database. Each column is declared once, with its domain."""

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

from tsm2_tune.tuner.results import domains
from tsm2_tune.tuner.results.domains import Domain

APPLICATION_ID = 0x74736D32  # "tsm2" in ASCII; it marks this program's files in SQLite's file header

metadata = MetaData()


class _ServerText(TypeDecorator[str]):
    """A text column on a PostgreSQL server, sorted by bytes as in SQLite. It replaces NUL."""

    impl = sqlalchemy.Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        return value.replace("\0", "\ufffd") if isinstance(value, str) else value


Text = sqlalchemy.Text().with_variant(_ServerText(collation="C"), "postgresql")
Integer = sqlalchemy.Integer().with_variant(BigInteger(), "postgresql")  # SQLite's integers have 64 bits
_SQL_TYPES: dict[type, Any] = {str: Text, int: Integer, float: Float()}


def column(
    name: str, domain: Domain, *key: ForeignKey, nullable: bool = False, later: bool = False, **options: Any
) -> Column[Any]:
    """Declare a column with the values of the domain, which determines the column's type.

    `later` means that exchange files of older versions lack the column. It is omitted there if it is NULL.
    """
    info = {"domain": domain, "later": later}
    return Column(name, _SQL_TYPES[domain.kind], *key, nullable=nullable, info=info, **options)


def nullable(of: Column[Any]) -> Column[Any]:
    """Return the column as an outer join has it: NULL if there is no row."""
    return column(of.name, of.info["domain"], nullable=True)


run = Table(
    "run",
    metadata,
    column("id", domains.ID, primary_key=True),
    column("device_name", domains.LINE),
    column("device_uuid", domains.LINE),
    column("compute_capability", domains.LINE),  # "" for the host
    column("driver", domains.LINE),
    column("toolkit", domains.LINE),
    column("flags", domains.LINE),
    column("version", domains.LINE),
    column("seed", domains.ID),
    column("started_at", domains.DATE),
    column("read_gbytes_per_s", domains.RATE),
    column("copy_gbytes_per_s", domains.RATE),
    column("gflops", domains.JSON),  # JSON: dtype -> measured FMA rate
    column("sms", domains.SMS, nullable=True),  # multiprocessors; NULL in runs of versions that did not store them
    UniqueConstraint("id", "device_name"),  # for the foreign key of a trial's copy of the name
)

problem = Table(
    "problem",
    metadata,
    column("id", domains.ID, primary_key=True),
    column("op", domains.WORD),
    column("dtype", domains.DTYPE),
    column("m", domains.COUNT),
    column("n", domains.COUNT),
    column("k", domains.COUNT),
    column("flops", domains.ID),
    column("least_bytes", domains.ID),
    column("batch", domains.COUNT, server_default="1"),
    UniqueConstraint("op", "dtype", "m", "n", "k", "batch"),
)

# Columns of a launch that can differ between trials with the same source.
LAUNCH_OF_TRIAL = ("rows_per_block", "splits")

# Paragraphs of the texts of kernels, each stored once: see paragraphs.py.
paragraph = Table(
    "paragraph",
    metadata,
    column("key", domains.KEY, primary_key=True),  # first 16 digits of the SHA-256 of its text
    column("text", domains.KERNEL_TEXT),
)

source = Table(
    "source",
    metadata,
    column("digest", domains.SHA256, primary_key=True),  # SHA-256 of the text without comments
    column("kernel", domains.NAME),
    column("paragraphs", domains.KEYS),  # keys of the paragraphs of the text, in order, between spaces
    column("dtype", domains.DTYPE),
    column("threads", domains.THREADS),
    column("rows_per_block", domains.POSITIVE),
    column("smem_bytes", domains.SMEM_BYTES),
    column("columns_per_block", domains.COUNT, server_default="0"),
    column("splits", domains.SPLITS, server_default="1"),
    column("flat_splits", domains.POSITIVE, server_default="64"),
    column("persistent", domains.FLAG, server_default="0"),  # 1 or 0
    column("batched", domains.BATCHED, server_default="0"),  # see Launch
)

# A configuration is tried once for each device, problem and basis. The first UNIQUE constraint ensures this across
# kills, restarts and simultaneous runs. It needs a copy of the device's name; the second foreign key keeps the copy
# equal to the run's name.
trial = Table(
    "trial",
    metadata,
    column("id", domains.ID, primary_key=True),
    column("run_id", domains.ID),
    column("device_name", domains.LINE),
    column("problem_id", domains.ID, ForeignKey("problem.id")),
    column("family", domains.NAME),
    column("config", domains.CONFIG),
    column("tunables", domains.JSON),  # JSON
    column("basis", domains.LINE),
    column("source_digest", domains.SHA256, ForeignKey("source.digest")),
    column("outcome", domains.OUTCOME),
    column("detail", domains.SENTENCE),
    column("registers", domains.COUNT, nullable=True),
    column("local_bytes", domains.COUNT, nullable=True),
    column("smem_bytes", domains.SMEM_BYTES, nullable=True),
    column("blocks_per_sm", domains.COUNT, nullable=True),
    column("spill_bytes", domains.COUNT, nullable=True),
    column("guideline_broken", domains.RULE, nullable=True),
    column("verdict_correct", domains.FLAG, nullable=True),  # 1 or 0; NULL if the result was never compared
    column("verdict_worst_ratio", domains.RATIO, nullable=True),
    column("verdict_detail", domains.SENTENCE, nullable=True),
    column("floor_us", domains.QUANTITY),
    column("compile_seconds", domains.QUANTITY),
    column("total_seconds", domains.QUANTITY),
    column("ended_at", domains.DATE),
    column("compile_limit_seconds", domains.QUANTITY, nullable=True),  # NULL if its version did not store them
    column("run_limit_seconds", domains.QUANTITY, nullable=True),
    column("full_verdict", domains.SENTENCE, nullable=True),  # the calls of the full verification
    column("rows_per_block", domains.POSITIVE, nullable=True),  # of its launch; NULL if as the source's
    column("splits", domains.SPLITS, nullable=True),
    column("cache", domains.CACHE, server_default="clean"),  # L2 cache state in which it was timed
    column("is_between", domains.FLAG, server_default="0"),  # 1: no search tried it, see best_view.py
    # 1: the kernel's code has changed since. The column `basis` is then another digest, see fingerprint.py.
    column("superseded", domains.FLAG, server_default="0"),
    column("strategy", domains.STRATEGY, nullable=True),  # of its search; NULL without a search, or if not stored
    column("stamp", domains.STAMP, server_default="0"),  # see logical_clock.py
    column("first_basis", domains.LINE, nullable=True, later=True),  # the original basis if superseded
    # Digests of the fully verified machine code, for each index width; NULL if they were not stored.
    column("verified_code", domains.CODES, nullable=True),
    # Number of configurations in its search space; NULL without a search, or if it was not stored.
    column("space_configurations", domains.COUNT, nullable=True, later=True),
    # Why the search ended, a value of search.Why; NULL until it ends, or if it was not stored.
    column("search_ended", domains.REASON, nullable=True, later=True),
    UniqueConstraint("device_name", "problem_id", "config", "basis"),
    ForeignKeyConstraint(["run_id", "device_name"], ["run.id", "run.device_name"]),
)

# A winner is stale if its basis (the digest of compiler, flags and L2 state) is not the newest of its family on the
# device. This index finds the newest basis. It begins with `cache`, so that SQLite uses it for no other query.
IS_IN_FORCE = trial.c.superseded == sqlalchemy.text("0")
newest_of_family = Index(
    "newest_of_family",
    *(trial.c[name] for name in ("cache", "device_name", "family", "stamp", "basis")),
    sqlite_where=IS_IN_FORCE,
)
newest_stamp = Index("newest_stamp", trial.c.stamp)

measurement = Table(
    "measurement",
    metadata,
    column("id", domains.ID, primary_key=True),
    column("trial_id", domains.ID, ForeignKey("trial.id")),
    column("run_id", domains.ID, ForeignKey("run.id")),  # the run that measured, maybe later than the trial's run
    # 0: the search's measurement. 1, 2, ...: rounds of final comparisons, one for each L2 cache state.
    # -1, -2, ...: searches' measurements from imported databases.
    column("round", domains.ROUND),
    column("median_us", domains.TIME_US),
    column("low_us", domains.QUANTITY),
    column("high_us", domains.QUANTITY),
    column("sm_clock_mhz", domains.QUANTITY, nullable=True),
    column("floor_us", domains.QUANTITY),  # least time of the problem, from this run's measured peak rates
    column("cache", domains.CACHE, server_default="clean"),
    column("summary_of", domains.SAMPLES, nullable=True),  # number of samples that were not stored; else NULL
    column("slowed", domains.COUNT, nullable=True, later=True),  # samples at a dropped clock
    column("final", domains.KEY, nullable=True),  # id and stamp of the final: see logical_clock.py
    column("final_stamp", domains.STAMP, nullable=True),
    UniqueConstraint("trial_id", "round"),
)

sample = Table(
    "sample",
    metadata,
    column("measurement_id", domains.ID, ForeignKey("measurement.id"), primary_key=True),
    column("ordinal", domains.COUNT, primary_key=True),
    column("us", domains.QUANTITY),
    sqlite_with_rowid=False,
)

# Times of vendor libraries in a round of a final comparison, which problem, run and number of the round identify.
vendor_measurement = Table(
    "vendor_measurement",
    metadata,
    column("id", domains.ID, primary_key=True),
    column("run_id", domains.ID, ForeignKey("run.id")),
    column("problem_id", domains.ID, ForeignKey("problem.id")),
    column("round", domains.ROUND),
    column("library", domains.LIBRARY),  # cuBLAS or cuBLASLt
    column("library_version", domains.COUNT),  # 130100 is 13.1.0
    column("routine", domains.ROUTINE),
    column("verdict_correct", domains.FLAG),  # 1 or 0
    column("verdict_worst_ratio", domains.RATIO),
    column("verdict_detail", domains.SENTENCE),
    column("median_us", domains.TIME_US),
    column("low_us", domains.QUANTITY),
    column("high_us", domains.QUANTITY),
    column("sm_clock_mhz", domains.QUANTITY, nullable=True),
    column("cache", domains.CACHE, server_default="clean"),
    column("summary_of", domains.SAMPLES, nullable=True),
    column("slowed", domains.COUNT, nullable=True, later=True),
    column("final", domains.KEY, nullable=True),
    column("final_stamp", domains.STAMP, nullable=True),
    UniqueConstraint("run_id", "problem_id", "round", "library"),
)

vendor_sample = Table(
    "vendor_sample",
    metadata,
    column("measurement_id", domains.ID, ForeignKey("vendor_measurement.id"), primary_key=True),
    column("ordinal", domains.COUNT, primary_key=True),
    column("us", domains.QUANTITY),
    sqlite_with_rowid=False,
)

# Problems that a run tunes. Other runs leave them to this run until the lease expires: see runs/leases.py.
lease = Table(
    "lease",
    metadata,
    column("device_name", domains.LINE, primary_key=True),
    column("problem", domains.LINE, primary_key=True),  # the problem's text
    column("owner", domains.LINE),  # the run, see runs/owners.py; "" if the lease was released
    column("expires_at", domains.QUANTITY),  # in seconds since 1970, UTC, by the clock of Database.now
    column("config", domains.CONFIG, nullable=True),  # that the owner has tried for a second or more
    column("suspect", domains.CONFIG, nullable=True),  # configuration at which the last runs died
    column("deaths", domains.COUNT),  # the number of these runs; 0 without a suspect
    sqlite_with_rowid=False,
)

# Kernels that hung or faulted on a device. Later runs on this device skip them: see quarantine.py.
quarantine = Table(
    "quarantine",
    metadata,
    column("device_name", domains.LINE, primary_key=True),
    column("digest", domains.SHA256, primary_key=True),  # of the kernel's code, definitions and launch
    column("tools", domains.SHA256, primary_key=True),  # SHA-256 of compiler, flags and driver
    column("toolkit", domains.LINE),
    column("driver", domains.LINE),
    column("config", domains.CONFIG),  # of the last failure, like the following columns
    column("problem", domains.LINE),
    column("outcome", domains.OUTCOME),
    column("detail", domains.SENTENCE),
    column("run_limit_seconds", domains.QUANTITY, nullable=True),  # NULL if the kernel faulted
    column("times", domains.COUNT),
    column("last_at", domains.DATE),
    sqlite_with_rowid=False,
)
