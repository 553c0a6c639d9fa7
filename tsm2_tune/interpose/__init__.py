"""The library that stands in for cuBLAS in a program that is not changed, and what it wrote down of it."""
