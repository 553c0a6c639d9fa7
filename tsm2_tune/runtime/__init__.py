"""The runtime of an exported module. `tsm2_tune.tuner.export` copies these modules verbatim into one file.

The tuner uses `launch` too. They import the standard library, NumPy and one another alone. No two of them define the
same name, since the file has one namespace.
"""
