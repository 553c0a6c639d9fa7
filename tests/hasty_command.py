"""The quick command of a run that takes others for dead after a second without a beat.

python -m tests.hasty_command --device cpu --shapes 64x2x64
"""

from __future__ import annotations

from tests.quick_command import make_quick
from tsm2_tune.__main__ import main
from tsm2_tune.tuner.runs.leases import configurations, owners

STALE_SECONDS = 1.0

if __name__ == "__main__":
    make_quick(setattr)
    configurations.BEAT_SECONDS, owners.STALE_SECONDS = STALE_SECONDS / 4, STALE_SECONDS
    main()
