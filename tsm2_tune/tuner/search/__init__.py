"""The search for the fastest kernel of a problem: choose configurations, compile, verify and time them.

`session.py` runs all steps for one problem: read earlier trials, search, time the fastest kernels again (finals), and
verify the fastest kernel in full. `loop.py` contains the loop over candidates. `strategies/` choose the next
candidate.
"""
