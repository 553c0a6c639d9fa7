"""Leases, by which the runs on one database avoid doing the same work. A run claims problems and configurations.

`problems.py` claims whole problems. `configurations.py` claims single configurations, and the final comparison of a
problem's fastest configurations. `owners.py` detects whether the owner of a claim is alive. `contested.py` remembers
configurations that another run had claimed.
"""
