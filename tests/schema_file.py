"""Record this version's schema in tests/schemas, as a new file creates it:

    python -m tests.schema_file

A recorded file stays as it is, since databases like it exist. A test opens each: a schema that was changed without a
migration fails it.
"""

from __future__ import annotations

import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from tsm2_tune.tuner.results.storage import schema, schema_versions
from tsm2_tune.tuner.results.store import Store

SCHEMAS = Path(__file__).parent / "schemas"
OLDEST = SCHEMAS / f"{schema_versions.OLDEST}.sql"
NEWEST = SCHEMAS / f"{schema_versions.version()}.sql"


def text_of_new_file() -> str:
    """Return the SQL statements that create a file of this version's schema."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.db"
        with Store.open(path, create=True):
            pass
        with closing(sqlite3.connect(path)) as connection:
            made = connection.execute("SELECT sql FROM sqlite_master WHERE sql <> '' ORDER BY rowid").fetchall()
    pragmas = f"PRAGMA user_version = {schema_versions.version()}", f"PRAGMA application_id = {schema.APPLICATION_ID}"
    return "".join(f"{statement}\n;\n" for statement in (*pragmas, *(sql for (sql,) in made)))


def columns_since_oldest(table: str) -> set[str]:
    """Return the names of the table's columns that the oldest schema with a migration lacks."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(OLDEST.read_text(encoding="utf-8"))
        old = {name for (_, name, *_) in connection.execute(f"PRAGMA table_info({table})")}
    return set(schema.metadata.tables[table].c.keys()) - old


if __name__ == "__main__":
    if NEWEST.exists():
        sys.exit(f"{NEWEST} exists: if the schema changed, append a migration to MIGRATIONS in schema_versions.py")
    NEWEST.write_text(text_of_new_file(), encoding="utf-8")
