"""A database on a PostgreSQL server: transactions, locks and error messages.

A transaction that writes takes an advisory lock. It is either the exclusive lock of the whole database, or the
exclusive lock of one device and problem, together with a shared lock of the database. Therefore writing transactions
never conflict.

If the server aborts a transaction, for example at a restart, Lost is raised. Each writing transaction stores a token
in the table `receipt`. If the reply to a COMMIT is lost, the token shows whether the transaction was committed.
"""

from __future__ import annotations

import hashlib
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, delete, event, func, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, MultipleResultsFound, NoResultFound

from tsm2_tune.errors import StoreError, ToolMissing, pip_install
from tsm2_tune.tuner.results.storage import postgresql_schema, schema_versions
from tsm2_tune.tuner.results.storage.addresses import EXAMPLE, Address, tune_first
from tsm2_tune.tuner.results.storage.postgresql_schema import RECEIPT
from tsm2_tune.tuner.results.storage.retry import POOL_TIMEOUT_SECONDS, Lost, until_committed
from tsm2_tune.tuner.results.storage.schema import APPLICATION_ID
from tsm2_tune.tuner.results.trial import in_a_line

LOCK_SECONDS = 90  # how long to wait for a lock: longer than a dead connection can hold it
IDLE_SECONDS = 60  # after which the server ends an idle transaction
DETAIL_CHARACTERS = 200  # shown of the server's own message
KEPT_DAYS = 7  # age at which receipts of killed runs are deleted
CONNECTION = {  # the connection to a dead machine ends within a minute
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
    "application_name": "tsm2-tune",
}
# Settings that determine what statements and values mean. They override settings of the server, database and user.
SESSION = {
    "backslash_quote": "safe_encoding",
    "bytea_output": "hex",
    "client_encoding": "UTF8",
    "DateStyle": "ISO, YMD",
    "default_transaction_deferrable": "off",
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "exit_on_error": "off",
    "extra_float_digits": "1",  # all digits, so that a number is read as it was written
    "idle_in_transaction_session_timeout": f"{IDLE_SECONDS}s",
    "idle_session_timeout": "0",
    "IntervalStyle": "postgres",
    "lock_timeout": f"{LOCK_SECONDS}s",
    "quote_all_identifiers": "off",  # SQLAlchemy does not recognise quoted types, for example "text"
    "row_security": "off",  # a policy that hides rows raises an error instead of hiding them
    "standard_conforming_strings": "on",
    "statement_timeout": "0",
    "TimeZone": "UTC",
    "transaction_timeout": "0",
    "transform_null_equals": "off",
}
# PostgreSQL's own search path, unless the address names another with options=-csearch_path=...
_SEARCH_PATH = """CASE WHEN source = 'client' THEN setting ELSE '"$user", public' END"""


def set_session(settings: Mapping[str, str]) -> str:
    """Return the SQL that applies the settings, without those that the server's version does not have."""
    values = ", ".join(f"('{name}', '{value}')" for name, value in settings.items())
    return f"""
SET statement_timeout = 0;
SELECT set_config(name, coalesce(wanted.value, {_SEARCH_PATH}), false)
FROM pg_catalog.pg_settings LEFT JOIN (VALUES {values}) AS wanted (name, value) USING (name)
WHERE wanted.value IS NOT NULL OR name = 'search_path'
"""


SET_SESSION = set_session(SESSION)

_RECEIVED = insert(RECEIPT).values(written_at=func.now())
_WRITTEN = _RECEIVED.on_conflict_do_update(
    index_elements=[RECEIPT.c.owner],
    set_={"token": _RECEIVED.excluded.token, "written_at": _RECEIVED.excluded.written_at},
)
# SQLSTATEs for connections and transactions that the server ended: in a conflict, at a shutdown, or when idle.
LOST = ("08", "40001", "40P01", "25P03", "57P01", "57P02", "57P03", "57P05", "53300")
UNDEFINED = "42P01"  # SQLSTATE: undefined table
# SQLSTATE -> the error and its remedy.
REMEDIES = {
    "55P03": "is locked by another program: wait until it has ended, then run this again",
    "42501": "refuses this to this user ({message}): have its owner grant it, or name another database with --db",
    "25006": "is read-only: name the primary server with --db",
    "53100": "cannot grow, the server's disk is full: free some space there, then run this again",
    UNDEFINED: "was altered by another program ({message}): restore a copy of it, or name another database with --db",
}


class Server:
    """An open database on a PostgreSQL server."""

    def __init__(self, address: Address, engine: Engine) -> None:
        self.engine = engine
        self._place = str(address)
        self._name = uuid.uuid4().hex  # marks this process's receipts
        self._has_receipts = False

    @classmethod
    @contextmanager
    def open(cls, address: Address, *, create: bool) -> Iterator[Server]:
        """Open the database at the address. If `create` is true and there are no tables, create them.

        Raise ToolMissing if psycopg is not installed. Raise StoreError if the database cannot be used.
        """
        server = cls(address, _engine(address))
        try:
            server._prepare(create=create)
            yield server
        finally:
            server._end()

    def _prepare(self, *, create: bool) -> None:
        """Create or migrate the tables if necessary, and check that they are this program's."""
        with self.transaction() as connection:
            found = postgresql_schema.found_version(connection, self._place)
        if found == 0 and not create:
            raise StoreError(f"{self._place} holds no results yet: {tune_first(self._place)}")
        if not create and found == schema_versions.version():
            return
        with self.transaction(writes=True) as connection:
            found = postgresql_schema.found_version(connection, self._place)  # again, with the lock
            if found < schema_versions.version():
                postgresql_schema.upgrade(connection, found)
            is_old = RECEIPT.c.written_at < func.now() - text(f"interval '{KEPT_DAYS} days'")
            connection.execute(delete(RECEIPT).where(is_old))

    @contextmanager
    def transaction(
        self, *, writes: bool = False, about: tuple[str, ...] = (), durable: bool = True
    ) -> Iterator[Connection]:
        """Execute the `with` block as one transaction. The parameters are those of Database.transaction.

        Raise Lost if the server aborted the transaction and stored nothing. Raise StoreError for any other error of
        the server.
        """
        token, is_ending = uuid.uuid4().hex, False
        try:
            with self._begun(writes, about, durable) as connection:
                yield connection
                if writes:
                    connection.execute(_WRITTEN, {"owner": self._writer, "token": token})
                    self._has_receipts = True
                is_ending = True
                connection.commit()
        except DBAPIError as error:
            refused = self._refused(error)
            if not (isinstance(refused, Lost) and writes and is_ending and self._was_stored(token, about)):
                raise refused from error
        except (NoResultFound, MultipleResultsFound) as error:  # for example if a trigger suppressed a row
            raise StoreError(f"{self._place} {REMEDIES[UNDEFINED].format(message=in_a_line(str(error)))}") from error

    def now(self, connection: Connection) -> float:
        """Return the seconds since 1970 by the server's clock."""
        return float(connection.execute(select(func.extract("epoch", func.clock_timestamp()))).scalar_one())

    def digest(self) -> str:
        """Return a SHA-256 digest of the results. It changes whenever results are stored."""
        found = []
        with self.transaction() as connection:
            for name in ("run", "problem", "trial", "measurement", "vendor_measurement"):
                query = f"SELECT md5(string_agg(each::text, '' ORDER BY id)) FROM {name} AS each"
                found.append(str(connection.execute(text(query)).scalar()))
        return hashlib.sha256(" ".join(found).encode()).hexdigest()

    @contextmanager
    def _begun(self, writes: bool, about: tuple[str, ...], durable: bool) -> Iterator[Connection]:
        """Begin a transaction. If it writes, take its advisory locks. If it only reads, it reads a snapshot."""
        with self.engine.connect() as connection:
            connection.execution_options(
                isolation_level="READ COMMITTED" if writes else "REPEATABLE READ", postgresql_readonly=not writes
            )
            if writes:
                connection.execute(text(_locks(about, durable)))
            yield connection

    @property
    def _writer(self) -> str:
        """The key of the current thread's row in the table `receipt`. A thread has at most one transaction."""
        return f"{self._name} {threading.get_ident()}"

    def _was_stored(self, token: str, about: tuple[str, ...]) -> bool:
        """Return whether the transaction with this token was committed, after the reply to its COMMIT was lost."""

        def asked() -> bool:
            try:  # the lock is free after the lost transaction's commit or rollback
                with self._begun(True, about, True) as connection:
                    query = select(RECEIPT.c.token).where(RECEIPT.c.owner == self._writer)
                    return connection.execute(query).scalar() == token
            except DBAPIError as error:
                raise self._refused(error) from error

        try:
            return until_committed(asked)
        except Lost as error:
            raise StoreError(
                f"{error}; whether the server stored the last results is unknown: run the same command to continue"
            ) from error

    def _refused(self, error: DBAPIError) -> StoreError:
        """Return the StoreError for an error of the server or of psycopg. Its message says what to do."""
        state = getattr(error.orig, "sqlstate", None) or ""
        lines = str(error.orig).strip().splitlines() or [type(error.orig).__name__]
        message = in_a_line(lines[0])[:DETAIL_CHARACTERS]
        if "no password supplied" in message:  # an error of libpq, which has no SQLSTATE
            return StoreError(
                f"{self._place} requires a password, and none is set ({message}): write it into ~/.pgpass, or set"
                " PGPASSWORD, on this machine"
            )
        is_away = error.connection_invalidated or (not state and _is_operational(error.orig))
        if is_away or state.startswith(LOST):
            return Lost(
                f"{self._place} cannot be reached ({message}): check that the server runs, and that host, port, user"
                " and name in --db are right"
            )
        remedy = REMEDIES.get(
            state, "was refused by PostgreSQL ({message}): fix that, or name another database with --db"
        )
        return StoreError(f"{self._place} {remedy.format(message=message)}")

    def _end(self) -> None:
        if self._has_receipts:
            with suppress(DBAPIError), self._begun(True, (self._name,), False) as connection:
                connection.execute(delete(RECEIPT).where(RECEIPT.c.owner.startswith(self._name)))
                connection.commit()
        self.engine.dispose()


@contextmanager
def as_it_is(address: Address) -> Iterator[Connection]:
    """Begin a transaction in the database, which is neither created nor migrated. Raise as `Server.open`."""
    server = Server(address, _engine(address))
    try:
        with server.transaction() as connection:
            yield connection
    finally:
        server.engine.dispose()


def schema_at(address: Address) -> int:
    """Return the schema version of the database; 0 if it is empty. Raise as `Server.open`."""
    with as_it_is(address) as connection:
        return postgresql_schema.found_version(connection, str(address))


def _locks(about: tuple[str, ...], durable: bool) -> str:
    """Return the SQL statement that takes the transaction's advisory locks."""
    if about:
        digest = hashlib.sha256("\0".join(about).encode()).digest()
        number = int.from_bytes(digest[:4], signed=True) or 1  # 0 is the lock of the database
        taken = (
            f"pg_advisory_xact_lock_shared({APPLICATION_ID}, 0), pg_advisory_xact_lock({APPLICATION_ID}, {number})"
        )
    else:
        taken = f"pg_advisory_xact_lock({APPLICATION_ID}, 0)"
    return f"SELECT {taken}" + ("" if durable else ", set_config('synchronous_commit', 'off', true)")


def _is_operational(error: object) -> bool:
    import psycopg

    return isinstance(error, psycopg.OperationalError)


def _engine(address: Address) -> Engine:
    """Return a SQLAlchemy engine for the server. It tests a pooled connection before each use."""
    try:
        import psycopg  # noqa: F401
    except ImportError:
        raise ToolMissing(f"{address} needs the package psycopg: {pip_install('psycopg[binary]')}") from None
    url = url_of(address)
    connection = {name: value for name, value in CONNECTION.items() if name not in url.query}
    try:
        engine = create_engine(
            url, pool_pre_ping=True, pool_timeout=POOL_TIMEOUT_SECONDS, connect_args=connection, hide_parameters=True
        )
    except ArgumentError as error:  # for example more ports than hosts
        raise StoreError(f"{address} is not an address ({error}): name the database as {EXAMPLE}") from None

    @event.listens_for(engine, "connect", insert=True)  # before SQLAlchemy's first query
    def begin(opened: Any, _: object) -> None:
        opened.execute(SET_SESSION)
        opened.commit()

    return engine


def _secret_parameters() -> set[str]:
    """Return the names of libpq's connection parameters that are secret."""
    known = {"password", "passfile", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key"}
    try:
        from psycopg.pq import Conninfo
    except ImportError:
        return known
    return known | {one.keyword.decode() for one in Conninfo.get_defaults() if one.dispchar}


def url_of(address: Address) -> URL:
    """Return the address as SQLAlchemy's URL. Raise StoreError if it is invalid or contains a secret parameter."""
    try:
        url = make_url(address.url).set(drivername="postgresql+psycopg")
    except (ArgumentError, ValueError):
        raise StoreError(f"{address} is not an address: name the database as {EXAMPLE}") from None
    if "@" in f"{url.host} {url.database}" and str(address) != address.url:
        raise StoreError(f"{address} has an @ or a / in its user or password: write %40 or %2F instead")
    secrets = _secret_parameters()
    for name in url.query:
        if name.lower() in secrets:  # the list of processes would show it
            raise StoreError(
                f"{address} has {name.lower()} in its query: write it into ~/.pgpass or a service file, or set"
                " PGPASSWORD"
            )
    if not url.database:
        raise StoreError(f"{address} names no database: name it as {EXAMPLE}")
    return url
