"""The quick command of a run that takes others for dead after a second without a renewal.

python -m tests.hasty_command --device cpu --shapes 64x2x64
"""

from __future__ import annotations

from tests.quick import keep_answers
from tests.quick_command import make_quick
from tsm2_tune.__main__ import main
from tsm2_tune.tuner.runs import leases

LEASE_SECONDS = 1.0

if __name__ == "__main__":
    keep_answers(setattr)
    make_quick(setattr)
    leases.RENEWAL_SECONDS, leases.LEASE_SECONDS = LEASE_SECONDS / 4, LEASE_SECONDS
    main()
