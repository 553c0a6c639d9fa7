"""Compile CUDA text to binaries: nvcc, compilers' environment, the cache, and a pool of compilers.

`compiler.py` compiles a text or finds it in the cache. `command_limits.py` and `supervisor.py` limit its time and
output. `failure_cause.py` decides whether the text or the machine made a compiler fail.
"""
