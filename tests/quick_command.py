"""The command for tests of what is around its trials: few samples, and winners verified in full by few calls.

python -m tests.quick_command --device cpu --shapes 64x2x64
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from tsm2_tune.__main__ import main
from tsm2_tune.api import results, tuning
from tsm2_tune.tuner import tune
from tsm2_tune.tuner.full_calls import EMULATED
from tsm2_tune.tuner.measure import Effort

SAMPLES = Effort(min_samples=3, max_samples=3, warm_up_seconds=0.0)
CALLS = replace(
    EMULATED, products=2e4, long_products=0, repeated_products=0, launches=2, deep_products=0, watched_products=0
)


def make_quick(setattr: Callable[[object, str, object], None]) -> None:
    """Have the command tune so from now on."""
    setattr(tune, "EMULATED", CALLS)
    for module in (tuning, results):
        setattr(module, "Options", partial(tune.Options, effort=SAMPLES, final_effort=SAMPLES))


if __name__ == "__main__":
    make_quick(setattr)
    main()
