"""Sets of few kernels for many shapes: the kernels that an exported module holds.

`smallest_set.py` chooses the fewest kernels that keep every shape within a share of its best time: `losses.py` reads
the times from the database, `pair_timing.py` measures missing ones, `set_cover.py` searches. `near_winners.py` and
`intermediate_winners.py` add kernels for shapes between the tuned ones, `rate_fit.py` fits a kernel's rates.
"""
