"""Access to the database: SQLite files and PostgreSQL servers.

`schema.py` defines the tables. `schema_versions.py` creates and migrates them. `sqlite_schema.py` and
`postgresql_schema.py` compare the tables of an existing database with these definitions before the database is used.
"""
