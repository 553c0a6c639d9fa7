"""Tuning results: records of measured kernels, and the database that stores the records.

`store.py` is the interface. `best_view.py` defines the fastest kernel of each problem. `storage/` opens SQLite files
and PostgreSQL servers. `merge/` merges databases. `exchange/` reads and writes other autotuners' formats.
"""
