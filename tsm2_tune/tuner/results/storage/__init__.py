"""The database below the store: files of SQLite, servers of PostgreSQL, their tables and migrations.

`schema.py` has the tables. `layout.py` compares a database with them before it is used.
"""
