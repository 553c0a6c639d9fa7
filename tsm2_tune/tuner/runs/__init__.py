"""Tuning runs: they tune problems on one or several devices, in one or several processes, and share one database.

`run.py` executes a run on one device, `fleet.py` on several devices: each is used by a process of its own, on this
machine or on a worker of a Dask cluster (`dask_cluster.py`). `leases.py` divides the problems among the runs on one
database, `problem_queue.py` among the devices of a run.
`events.py` contains the events that a run reports.
"""
