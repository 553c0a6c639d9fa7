"""Compile CUDA text to binaries: nvcc, compilers' environment, the cache, and a pool of compilers.

`compiler.py` compiles a text or finds it in the cache. `processes.py` and `supervisor.py` limit a compiler's time and
output. `failure_cause.py` decides whether the text or the machine made a compiler fail.
"""
