"""Verification of a kernel: its operands, its test calls, and the comparison with a reference result.

`checks.py` defines the test calls, `error_bounds.py` the error that each call allows. `verdict.py` runs the calls and
compares the results. The fastest kernel of a problem must pass many more calls: `winner_calls.py` lists these calls,
`exhaustive.py` runs them.
"""
