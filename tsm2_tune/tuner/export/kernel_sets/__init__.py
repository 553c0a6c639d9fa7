"""Sets of few kernels for many shapes: which kernels an exported module holds, and what each of them gains.

`within.py` chooses the fewest kernels within a share of the best times, `fewest.py` does so for an export and
measures what is missing. `between.py` and `near_winners.py` add kernels for shapes between the tuned ones.
"""
