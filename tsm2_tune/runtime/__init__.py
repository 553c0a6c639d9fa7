"""What an exported module does when it is called: ordinary modules, which `tsm2_tune.tuner.export` copies verbatim
into one file. The tuner uses `launch` of them too.

They import the standard library, NumPy and one another alone. No two of them define the same name, since in that file
all have one namespace.
"""
