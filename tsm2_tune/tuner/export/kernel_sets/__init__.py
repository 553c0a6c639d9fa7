"""Selection of the kernels that an exported module contains: few kernels for many shapes.

`smallest_set.py` chooses the fewest kernels so that no shape's time exceeds the best time by more than a given share.
For this choice, `losses.py` reads times from the database, `pair_timing.py` measures missing times, and
`set_cover.py` searches for the smallest set of kernels. `near_winners.py` and `intermediate_winners.py` add kernels
for shapes between tuned shapes. `rate_fit.py` fits the rates (arithmetic rate and cached bandwidth) from which a
kernel's time is predicted.
"""
