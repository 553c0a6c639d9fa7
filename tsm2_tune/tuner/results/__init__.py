"""Results: the records of trials and times, and the database that holds them.

`store.py` is the interface. `best_view.py` defines the winner. `storage/` has files, servers and migrations.
`merge/` merges databases. `exchange/` reads and writes other autotuners' formats.
"""
