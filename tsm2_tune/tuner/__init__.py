"""The half with side effects: compile, verify, measure, store, export. A folder for each, and `packs` and `doctor`.

It imports `generator`, `runtime` and `pretuned`, and nothing of the command line.
"""
