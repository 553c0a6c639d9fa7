"""The Python API: one function for each main command. The package `tsm2_tune` exports the functions.

`parse.py` parses shapes, element types and other arguments. `selection.py` selects stored results. Both raise
InputError for invalid arguments.
"""
