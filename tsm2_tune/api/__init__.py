"""The Python API: what the commands do, as functions that take and return records. `tsm2_tune` exports its names.

`parse.py` reads shapes, types and ops, `selection.py` which stored results are meant; both raise InputError.
"""
