"""The stand-in: a library that LD_PRELOAD loads before cuBLAS, so that an unchanged program uses tuned kernels.

It intercepts cuBLAS's functions and records each product in a file, the journal. Its C files are in `c/`: `standin.h`
is the overview, `dispatch.c` chooses between kernel and cuBLAS for each call, `journal.c` writes the journal.
`build.py` builds the stand-in, `pack_library.py` the library with the kernels; `preload.py` runs a program with them,
and `journal.py` reads the journal.
"""
