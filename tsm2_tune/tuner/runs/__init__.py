"""Tuning runs: they tune problems on one or several devices, in one or several processes, and share one database.

`run.py` executes one run on one device. `fleet.py` executes one run per GPU of this machine, `dask_cluster.py` one
run per Dask worker. `leases/` prevents two runs on one database from measuring the same configuration twice.
`events.py` contains the events that a run reports.
"""
