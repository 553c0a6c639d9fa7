"""CUDA text to binaries: nvcc, its environment, the cache, and compilers that run at the same time.

`compiler.py` compiles a text or finds it in the cache. `processes.py` and `supervisor.py` limit the time and output
of a compiler, and `failure_cause.py` tells the text's fault from the machine's.
"""
