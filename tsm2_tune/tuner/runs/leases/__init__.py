"""Leases between runs on one database: a run claims problems and configurations until it ends or dies.

`problems.py` claims whole problems, `configurations.py` single configurations and finals. `owners.py` says which
owners are alive, `contested.py` keeps the configurations that another run had claimed.
"""
