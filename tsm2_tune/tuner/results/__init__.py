"""Results: the records of trials and times, the database that holds them, and putting databases together.

`store.py` is the interface; `best_view.py` defines the winner. `storage/` lies below it: files, servers, migrations.
`merge/` joins databases and `exchange/` reads and writes other autotuners' formats.
"""
