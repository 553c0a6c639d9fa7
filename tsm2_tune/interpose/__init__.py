"""The stand-in: a library that LD_PRELOAD puts before cuBLAS in an unchanged program, and its journal of products.

Its C files are in `c/`: `standin.h` is the overview, `dispatch.c` decides each call, `journal.c` writes the journal.
`build.py` and `pack_library.py` build the stand-in and the kernels, `preload.py` runs a program with them.
"""
