"""How a database's file is recognised, created, and brought to the layout of now."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache

from sqlalchemy import Connection, Dialect, Table
from sqlalchemy.dialects import registry
from sqlalchemy.schema import CreateIndex, CreateTable

from tsm2_tune.errors import InputError, StoreError
from tsm2_tune.generator.device.roofline import Ceilings
from tsm2_tune.generator.families import config_spelt
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.source import digest_of
from tsm2_tune.tuner.results import backfill
from tsm2_tune.tuner.results.best_view import BEST_VIEW
from tsm2_tune.tuner.results.domains import MOST_JSON
from tsm2_tune.tuner.results.fingerprint import basis
from tsm2_tune.tuner.results.storage import schema
from tsm2_tune.tuner.results.trial import Cache

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


OF_FINAL = ("final", "final_stamp")
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
            continue  # damaged: the reader of such a row reports it
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
    schema.claim.create(connection)


def _add_full_verdict(connection: Connection) -> None:
    """A winner is verified in full; those of before were not."""
    connection.exec_driver_sql("ALTER TABLE trial ADD COLUMN full_verdict TEXT")


def _add_vendor(connection: Connection) -> None:
    """Finals measure the vendor's libraries too; those of before did not."""
    schema.vendor_measurement.create(connection)
    schema.vendor_sample.create(connection)


def _add_launches(connection: Connection) -> None:
    """Trials that differ only in how one kernel is started have the same source; before, each had its own."""
    for name in schema.LAUNCH_OF_TRIAL:
        connection.exec_driver_sql(f"ALTER TABLE trial ADD COLUMN {name} INTEGER")


def _add_multiprocessors(connection: Connection) -> None:
    """How a kernel is started for a shape that was not tuned depends on the card's multiprocessors."""
    connection.exec_driver_sql("ALTER TABLE run ADD COLUMN sms INTEGER")


def _add_caches(connection: Connection) -> None:
    """Times are of a state of the L2; before, all were of one that what ran last had read full."""
    for table in ("trial", "measurement", "vendor_measurement"):
        columns = connection.exec_driver_sql(f"PRAGMA table_info({table})")
        if "cache" not in [column.name for column in columns]:  # a new table has it
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
        if "summary_of" not in [column.name for column in columns]:  # a new table has it
            connection.exec_driver_sql(f"ALTER TABLE {table} ADD COLUMN summary_of INTEGER")


def _tell_kernels_by_code(connection: Connection) -> None:
    """A trial is superseded when the code of its kernel changes. Before, a comment made another kernel, and whatever
    changed in a family's files made all of its trials stale.
    """
    columns = connection.exec_driver_sql("PRAGMA table_info(trial)")
    if "superseded" not in [column.name for column in columns]:  # a new table has it
        connection.exec_driver_sql("ALTER TABLE trial ADD COLUMN superseded INTEGER NOT NULL DEFAULT 0")
    _rename_sources(connection)
    last = "max(ended_at || printf('%020d', id))"  # SQLite takes the other columns from the row that has it
    groups = connection.exec_driver_sql(
        f"SELECT device_name, problem_id, family, cache, basis, {last} FROM trial"
        " GROUP BY device_name, problem_id, family, cache"
    ).all()
    connection.exec_driver_sql("UPDATE trial SET superseded = 1")
    for *key, _ in groups:
        of_group = "device_name = ? AND problem_id = ? AND family = ? AND cache = ? AND basis = ?"
        tools = connection.exec_driver_sql(
            f"SELECT toolkit, flags FROM run JOIN trial ON run.id = run_id WHERE trial.{of_group}", tuple(key)
        ).first()
        with suppress(*UNREADABLE):
            assert tools is not None
            new = basis(str(tools[0]), str(tools[1]), Cache(key[3]))
            connection.exec_driver_sql(f"UPDATE trial SET superseded = 0, basis = ? WHERE {of_group}", (new, *key))


def _rename_sources(connection: Connection) -> None:
    """Name kernels by their code, but for one whose text is damaged, which whoever reads it refuses."""
    names = [row[0] for row in connection.exec_driver_sql("SELECT digest FROM source")]
    columns = [one.name for one in schema.source.columns if one.name != "digest"]
    for old in names:
        text = connection.exec_driver_sql("SELECT text FROM source WHERE digest = ?", (old,)).scalar_one()
        if not isinstance(text, str) or hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest() != old:
            continue
        new = digest_of(text)
        listed = ", ".join(columns)
        connection.exec_driver_sql(
            f"INSERT OR IGNORE INTO source (digest, {listed}) SELECT ?, {listed} FROM source WHERE digest = ?",
            (new, old),
        )
        connection.exec_driver_sql("UPDATE trial SET source_digest = ? WHERE source_digest = ?", (new, old))
        if new != old:
            connection.exec_driver_sql("DELETE FROM source WHERE digest = ?", (old,))


def _spell_out(connection: Connection) -> None:
    """Tunables of a configuration are spelt by name. Before, each had a letter."""
    for table in ("trial", "claim"):
        texts = [row[0] for row in connection.exec_driver_sql(f"SELECT DISTINCT config FROM {table}")]
        for text in texts:
            config = config_spelt(str(text))
            if config is not None:  # else another version's, or final
                connection.exec_driver_sql(f"UPDATE {table} SET config = ? WHERE config = ?", (config.text, text))


def _end_trials_early(_: Connection) -> None:
    """A trial may end as behind, which a program of before does not know: it is to refuse the file."""


def _rename(connection: Connection) -> None:
    """Families and tunables have the names that CUTLASS and BLAS have for them, where these have one."""
    for (text,) in connection.exec_driver_sql("SELECT DISTINCT config FROM trial").fetchall():
        config = config_spelt(str(text))
        if config is not None:  # else another version's
            connection.exec_driver_sql(
                "UPDATE trial SET family = ?, config = ?, tunables = ? WHERE config = ?",
                (config.family, config.text, config.json, text),
            )
    for (text,) in connection.exec_driver_sql("SELECT DISTINCT config FROM claim").fetchall():
        config = config_spelt(str(text))
        if config is not None:  # else another version's, or final
            connection.exec_driver_sql("UPDATE claim SET config = ? WHERE config = ?", (config.text, text))


def _add_attempts(connection: Connection) -> None:
    """A configuration is given up where run after run dies of it; before, nobody counted."""
    columns = connection.exec_driver_sql("PRAGMA table_info(claim)")
    if "attempts" not in [column.name for column in columns]:  # a new table has it
        connection.exec_driver_sql("ALTER TABLE claim ADD COLUMN attempts INTEGER NOT NULL DEFAULT 0")


def _add_slowed(connection: Connection) -> None:
    """A final's samples that were taken while the clock had dropped are counted; of those before nobody knows."""
    for table in ("measurement", "vendor_measurement"):
        columns = connection.exec_driver_sql(f"PRAGMA table_info({table})")
        if "slowed" not in [column.name for column in columns]:  # a new table has it
            connection.exec_driver_sql(f"ALTER TABLE {table} ADD COLUMN slowed INTEGER")


def _add_quarantine(connection: Connection) -> None:
    """Kernels that hung or faulted are left out for other problems."""
    schema.quarantine.create(connection)


def _to_20(connection: Connection) -> None:
    """Kernels that hung or faulted are left out for other problems, a configuration is given up where run after run
    dies of it, and a final's samples are counted that were taken while the clock had dropped.
    """
    _add_slowed(connection)
    _add_quarantine(connection)
    _add_attempts(connection)


def _to_21(connection: Connection) -> None:
    """A trial says which strategy its search had; of those before nobody knows."""
    kind = schema.trial.c.strategy.type.compile(connection.dialect)
    connection.exec_driver_sql(f"ALTER TABLE trial ADD COLUMN strategy {kind}")


def _to_22(connection: Connection) -> None:
    """Trials and finals have stamps, and finals an identity; before, dates ordered them. A superseded trial keeps the
    basis that it was tried on.
    """
    own = [(table, column) for table in (schema.measurement, schema.vendor_measurement) for column in OF_FINAL]
    _add_columns(connection, (*own, (schema.trial, "first_basis"), (schema.trial, "stamp")))
    backfill.stamp(connection)


def _to_23(connection: Connection) -> None:
    """A trial says which machine code was verified in full; before, nobody stored it."""
    _add_columns(connection, [(schema.trial, "verified_code")])


def _to_24(connection: Connection) -> None:
    """A trial says how many configurations the space of its search had; before, nobody stored it."""
    _add_columns(connection, [(schema.trial, "space_configurations")])


def _to_25(connection: Connection) -> None:
    """A trial says why its search ended; before, nobody stored it."""
    _add_columns(connection, [(schema.trial, "search_ended")])


def _add_columns(connection: Connection, columns: Iterable[tuple[Table, str]]) -> None:
    """Add these columns, but for those that are there, as in a table made just now."""
    for table, name in columns:
        there = list(connection.exec_driver_sql(f"SELECT * FROM {table.name} LIMIT 0").keys())
        if name not in there:
            kind = table.c[name].type.compile(connection.dialect)
            rest = "" if table.c[name].nullable else " NOT NULL DEFAULT 0"
            connection.exec_driver_sql(f"ALTER TABLE {table.name} ADD COLUMN {name} {kind}{rest}")


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
    _tell_kernels_by_code,
    _spell_out,
    _end_trials_early,
    _rename,
    _to_20,
    _to_21,
    _to_22,
    _to_23,
    _to_24,
    _to_25,
)
FIRST_ON_SERVERS = 20  # migrations from it on are of servers too


def version() -> int:
    """The schema that this program writes."""
    return 1 + len(MIGRATIONS)


def found_version(connection: Connection, path: str) -> int:
    """The schema of the open file; 0 for an empty database. StoreError for another program's, or a newer one."""
    application_id = connection.exec_driver_sql("PRAGMA application_id").scalar_one()
    found: int = connection.exec_driver_sql("PRAGMA user_version").scalar_one()
    if application_id != schema.APPLICATION_ID:
        if application_id or found or connection.exec_driver_sql("SELECT 1 FROM sqlite_master").first():
            raise StoreError(f"{path} is a database of another program: name another file with --db")
        return 0
    refuse_newer(found, path)
    return found


def refuse_newer(found: int, path: str) -> None:
    """StoreError where the schema `found` is of a newer version of this program."""
    if found > version():
        raise StoreError(
            f"{path} has schema {found}, newer than {version()}, the last that this tsm2-tune knows:"
            " use a newer tsm2-tune, or name another file with --db"
        )


def upgrade(connection: Connection, found: int) -> None:
    """Bring the file from schema `found` to this program's, inside the transaction that is open."""
    make(connection, found)
    connection.exec_driver_sql(f"PRAGMA application_id = {schema.APPLICATION_ID}")
    connection.exec_driver_sql(f"PRAGMA user_version = {version()}")


def statements(dialect: Dialect) -> tuple[str, ...]:
    """Return the statements that create all tables, then their indices."""
    return _statements(f"{dialect.name}.{dialect.driver}")


@cache
def _statements(name: str) -> tuple[str, ...]:
    spoken = registry.load(name)()
    made = list[str]()
    for table in schema.metadata.sorted_tables:
        made.append(str(CreateTable(table).compile(dialect=spoken)).strip())
        made += sorted(str(CreateIndex(index).compile(dialect=spoken)) for index in table.indexes)
    return tuple(made)


def make(connection: Connection, found: int) -> None:
    """Make tables, indices and view, or bring the tables from schema `found` to this program's and make the others
    anew.
    """
    if found == 0:
        for statement in statements(connection.dialect):
            connection.exec_driver_sql(statement)
    else:
        for migrate in MIGRATIONS[found - 1 :]:
            migrate(connection)
        connection.exec_driver_sql("DROP VIEW best")
        for index in (index for table in schema.metadata.sorted_tables for index in table.indexes):
            index.drop(connection, checkfirst=True)
            index.create(connection)
    connection.exec_driver_sql(BEST_VIEW)
