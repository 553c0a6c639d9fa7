"""Everything with side effects: compile, verify, measure, store and export kernels.

The package imports `generator`, `runtime` and `pretuned`. It imports nothing of the command line.
"""
