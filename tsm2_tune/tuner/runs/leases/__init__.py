"""Claims (leases): rows in the database by which a run reserves work, so that other runs do not repeat it.

`problems.py` claims whole problems. `configurations.py` claims single configurations, and the final comparison of a
problem's fastest configurations. `owners.py` detects whether the owner of a claim is alive. `contested.py` remembers
configurations that another run had claimed.
"""
