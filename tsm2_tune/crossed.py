"""What the terminal shows while kernels are measured at shapes that they did not win, and what came of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from rich.console import Console

from tsm2_tune.display import LONG_SECONDS, print_line
from tsm2_tune.fewest import Measuring
from tsm2_tune.generator.problem import Problem
from tsm2_tune.liveness import Liveness
from tsm2_tune.tuner import job
from tsm2_tune.tuner.crossing import Crossing
from tsm2_tune.tuner.store import Store
from tsm2_tune.tuner.trial import Outcome
from tsm2_tune.tuner.tune import FinalFailure, Tuner


def cross(asked: frozenset[Problem], tuner: Tuner, store: Store, families: Collection[str], console: Console) -> int:
    """Measure the pairs of what was asked for, and print how many there were; returns how often the machine
    interrupted it.
    """
    outcomes, others = Counter[Outcome](), 0  # of trials, and interrupted ones of finals and full verifications
    between = 0  # trials that were right at shapes that nobody tuned
    with (
        Measuring(console, "pairs", counts=("final",)) as shown,
        Liveness(lambda seconds: shown.goes_on(seconds, tuner.phases.now), LONG_SECONDS) as liveness,
    ):
        for event in Crossing(asked, tuner, store, families).events():
            liveness.event()
            shown.show(event)
            if isinstance(event, job.TrialStored | job.TrialInterrupted):
                outcomes[event.trial.outcome] += 1
                between += event.trial.is_between and event.trial.outcome is Outcome.OK
            elif isinstance(event, job.WinnerVerified):
                others += event.outcome is Outcome.INTERRUPTED
            elif isinstance(event, FinalFailure):
                others += event.interrupted
    if outcomes:
        failed = sorted((outcome, count) for outcome, count in outcomes.items() if outcome is not Outcome.OK)
        where = f" ({between} at shapes between the tuned ones)" if between else ""
        parts = [f"{outcomes[Outcome.OK]} measured{where}", *(f"{count} {outcome}" for outcome, count in failed)]
        print_line(console, f"kernels at shapes that they did not win: {', '.join(parts)}")
    return outcomes[Outcome.INTERRUPTED] + others
