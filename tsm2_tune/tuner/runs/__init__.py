"""Runs: problems tuned on one device or several, in one process or many, on one database.

`run.py` is one run on one device, `fleet.py` several on this machine, `cluster.py` those of Dask workers. `claims.py`
and its neighbours keep runs on one database from doing the same work; `events.py` has what a run tells.
"""
