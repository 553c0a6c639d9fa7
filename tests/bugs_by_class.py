"""The table of bugs by class, and a command that tries them all.

    python -m tests.bugs_by_class --all           # on the host, the slow ones too
    python -m tests.bugs_by_class --device 0      # on a GPU, with those that a host cannot see

What decides is the product's own verification: a trial, and where that accepts, the full verification.
"""

from __future__ import annotations

from tests.bugs_of_numbers import PRECISION, SCALARS, VALUES
from tests.bugs_of_shapes import LONG_LOOPS, ORDER, STATE, TAILS, WIDTH
from tests.bugs_on_gpu import UNSEEN_BY_A_HOST

CASES = (*SCALARS, *TAILS, *LONG_LOOPS, *VALUES, *PRECISION, *STATE, *WIDTH, *ORDER, *UNSEEN_BY_A_HOST)

if __name__ == "__main__":
    from tests.bugs_command import main

    main()
