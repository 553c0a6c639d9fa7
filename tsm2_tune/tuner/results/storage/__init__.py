"""The database below the store: SQLite files and PostgreSQL servers.

`schema.py` has the tables, `schema_versions.py` creates and migrates them. `sqlite_schema.py` and
`postgresql_schema.py` compare a database with them before it is used.
"""
