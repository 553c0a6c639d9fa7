"""Verification of a kernel: its operands, the calls that it must pass, and the comparison with a reference.

`checks.py` has the calls, `error_bounds.py` the error that each may show. `verdict.py` runs the calls and judges the
results. A winner makes many more calls before it is stored as one: `winner_calls.py` lists them, `exhaustive.py` runs
them.
"""
