"""Compile CUDA source text to binaries with nvcc, in parallel, and keep the binaries in a cache on disk.

`compiler.py` compiles a text or finds its binary in the cache. `command_limits.py` and `supervisor.py` limit the
compiler's time and output. `failure_cause.py` decides whether the source or the machine made a compiler fail.
"""
