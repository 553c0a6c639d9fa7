"""The search of one problem: choose configurations, compile and try them, run finals.

`session.py` does all for one problem: earlier trials, search, finals, full verification. `loop.py` is the loop over
candidates, and `strategies/` choose the next candidate.
"""
