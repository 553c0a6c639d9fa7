"""The database below the store: files of SQLite, servers of PostgreSQL, their tables and migrations."""
