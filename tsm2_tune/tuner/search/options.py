"""How much a run tries, and how patiently."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tsm2_tune.generator.scalars import plain
from tsm2_tune.tuner.measure.timing import Effort
from tsm2_tune.tuner.results.trial import IN_FINALS, Cache, Outcome, TimeLimits


@dataclass(frozen=True, slots=True)
@plain
class Options:
    """How much to try, and how patiently."""

    seed: int = 0
    max_trials: int | None = None  # for each problem, those of earlier runs included
    budget_seconds: float | None = None  # for each problem, that of earlier runs included
    least_trials: int = 0  # for each problem, now: where they take longer than the budget
    compile_limit_seconds: float = 120.0
    run_limit_seconds: float = 60.0  # for each stage of a trial: loading, verification, timing
    retried: frozenset[Outcome] = frozenset()  # earlier trials that ended so count as untried
    sharing: int = 1  # runs that share this machine's processors
    vendor: bool = False  # whether cuBLAS and cuBLASLt are measured beside the finalists
    # How many times as long as the fastest so far the first launches of a trial may take, on a GPU; where they take
    # longer, the trial ends there. None: every trial is verified and timed in full.
    reach: float | None = None
    strategy: str = "model"  # its name
    gain: float | None = None  # of the best time: a search ends that is expected to gain less; None is no such end
    cache: Cache = Cache.DIRTY  # the state of a GPU's L2 for trials, and for the ranking
    final_caches: tuple[Cache, ...] = IN_FINALS  # further states for finals
    # A kernel is verified before it is timed, so that the clock has settled. On an H100 the medians of 245 kernels
    # were the same after 2 ms as after 20, to within what they vary from one time to the next.
    effort: Effort = field(default_factory=lambda: Effort(warm_up_seconds=0.002))
    final_effort: Effort = field(
        default_factory=lambda: Effort(spread=0.002, min_samples=21, max_samples=101, limit_seconds=2.0)
    )

    @property
    def limits(self) -> TimeLimits:
        return TimeLimits(self.compile_limit_seconds, self.run_limit_seconds)

    @property
    def unbounded(self) -> Options:
        """The same, but that all that a search is given is tried, and nothing else."""
        return replace(self, max_trials=None, budget_seconds=None, gain=None, reach=None)
