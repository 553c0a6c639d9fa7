"""Tuning results: records of measured kernels, and the database that stores the records.

`store.py` is the interface. `best_view.py` defines the fastest kernel of each problem. `storage/` opens the database:
a SQLite file, or a database on a PostgreSQL server. `merge/` merges databases. `exchange/` reads and writes other
autotuners' formats.
"""
