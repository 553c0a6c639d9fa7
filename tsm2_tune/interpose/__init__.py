"""The library that stands in for cuBLAS in an unchanged program, and the journal of the products that it saw.

Its C is in `c/`: `standin.h` is the overview, `dispatch.c` decides a call, `journal.c` writes and `journal.py` reads.
"""
