"""Check whether a user has the privileges to tune with a PostgreSQL database. Nothing is written."""

from __future__ import annotations

from sqlalchemy import Connection, text

from tsm2_tune.tuner.doctor.finding import Finding, ok, problem
from tsm2_tune.tuner.results.best_view import best
from tsm2_tune.tuner.results.storage import postgresql_schema, schema, schema_versions
from tsm2_tune.tuner.results.storage.addresses import Address
from tsm2_tune.tuner.results.storage.postgresql import as_it_is

NAME, MEANS = "database", "no trial is stored"
WRITTEN = [*schema.metadata.tables, postgresql_schema.RECEIPT.name]
ELSEWHERE = "or name another database with --db"
WHERE = text(
    "SELECT pg_is_in_recovery(), quote_ident(current_schema()), quote_ident(current_user),"
    " has_schema_privilege(current_schema(), 'CREATE')"
)
OURS = "pg_class.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema())"
OF_OTHERS = text(f"SELECT relname FROM pg_class WHERE {OURS} AND NOT pg_has_role(relowner, 'USAGE')")
LACKING = text(  # privileges; a view is only read
    "SELECT DISTINCT privilege FROM pg_class, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS privilege"
    f" WHERE {OURS} AND (relname = ANY(:tables) OR relname = :view AND privilege = 'SELECT')"
    " AND NOT has_table_privilege(pg_class.oid, privilege)"
)
# Sequences that number the rows of our tables, and that this user may not use.
NOT_NUMBERED = text(
    "SELECT DISTINCT 1 FROM pg_class JOIN pg_depend ON refobjid = pg_class.oid AND deptype = 'a'"
    " AND classid = 'pg_class'::regclass AND refclassid = 'pg_class'::regclass"
    " JOIN pg_class AS sequence ON sequence.oid = objid"
    f" WHERE {OURS} AND pg_class.relname = ANY(:tables)"
    " AND CASE sequence.relkind WHEN 'S' THEN NOT has_sequence_privilege(sequence.oid, 'USAGE, UPDATE') END"
)


def on_server(address: Address) -> Finding:
    """Return a finding: whether the database can contain this program's tables, and whether this user may write."""
    with as_it_is(address) as connection:
        found = postgresql_schema.found_version(connection, str(address))
        return _finding(address, connection, found)


def _finding(address: Address, connection: Connection, found: int) -> Finding:
    is_standby, where, user, may_create = connection.execute(WHERE).one()
    if is_standby:
        remedy = "name the primary server with --db"
        return problem(NAME, f"{address} is read-only, because it is a standby", means=MEANS, remedy=remedy)
    if found < schema_versions.version():
        if not may_create:
            what = f"this user may not create tables in its schema {where}"
            remedy = f"have its owner run GRANT CREATE ON SCHEMA {where} TO {user}, {ELSEWHERE}"
            return problem(NAME, f"{address}, where {what}", means=MEANS, remedy=remedy)
        if found and connection.execute(OF_OTHERS).first():
            what = (
                f"has schema {found}, and only the owner of its tables can migrate it to {schema_versions.version()}"
            )
            remedy = f"have that user run tsm2-tune db migrate, {ELSEWHERE}"
            return problem(NAME, f"{address} {what}", means=MEANS, remedy=remedy)
        return ok(NAME, f"{address}, {'there' if found else 'not made yet'}")
    lacking, grants = _lacking(connection, where, user)
    if lacking:
        remedy = f"have its owner run {'; '.join(grants)}; {ELSEWHERE}"
        return problem(NAME, f"{address}, where this user may not {lacking}", means=MEANS, remedy=remedy)
    return ok(NAME, f"{address}, there")


def _lacking(connection: Connection, where: str, user: str) -> tuple[str, list[str]]:
    """Return the missing privileges in the schema `where`, and SQL that grants them; "" if none is missing."""
    missing = {*connection.execute(LACKING, {"tables": WRITTEN, "view": best.name}).scalars()}
    privileges = [one for one in ("SELECT", "INSERT", "UPDATE", "DELETE") if one in missing]
    what, grants = [], []
    if privileges:
        what.append(f"{', '.join(privileges)} in all of its tables")
        grants.append(f"GRANT {', '.join(privileges)} ON ALL TABLES IN SCHEMA {where} TO {user}")
    if connection.execute(NOT_NUMBERED, {"tables": WRITTEN}).first():
        what.append("use the sequences that number their rows")
        grants.append(f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA {where} TO {user}")
    return ", nor ".join(what), grants
