"""Verification of a kernel: its operands, the calls that it must pass, and the comparison with a reference.

`checks.py` has the calls and the error that each may show, `verification.py` runs them, `exhaustive.py` runs all of
them on a winner.
"""
