"""Benchmarks: the commands that measure the numbers in docs. Most need a GPU."""
