"""The search of one problem: which configurations are tried, and what each trial came to.

`session.py` surrounds one problem: history, search, finals, full verification. `loop.py` is the search itself, and
`strategies/` decide what it tries next.
"""
