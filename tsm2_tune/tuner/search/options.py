"""The options of a search: limits on trials and times, strategy, L2 states, measuring effort."""

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
    max_trials: int | None = None  # for each problem, including earlier runs
    budget_seconds: float | None = None  # for each problem, including earlier runs
    least_trials: int = 0  # for each problem in this run, even if they exceed the budget
    compile_limit_seconds: float = 120.0
    run_limit_seconds: float = 60.0  # for each stage of a trial: loading, verification, timing
    retried: frozenset[Outcome] = frozenset()  # earlier trials with these outcomes count as untried
    sharing: int = 1  # runs that share this machine's processors
    vendor: bool = False  # whether cuBLAS and cuBLASLt are measured beside the finalists
    # On a GPU a trial ends early if its first launches take more than this many times the fastest time so far. None:
    # every trial is verified and timed in full.
    reach: float | None = None
    strategy: str = "model"  # its name
    gain: float | None = None  # the search ends if the expected gain, relative to the best time, is less; None: never
    cache: Cache = Cache.DIRTY  # the state of a GPU's L2 for trials, and for the ranking
    final_caches: tuple[Cache, ...] = IN_FINALS  # further states for finals
    # Verification comes first and lets the clock settle. On an H100 the medians of 245 kernels after 2 ms differed
    # from those after 20 ms no more than repeated measurements do.
    effort: Effort = field(default_factory=lambda: Effort(warm_up_seconds=0.002))
    final_effort: Effort = field(
        default_factory=lambda: Effort(spread=0.002, min_samples=21, max_samples=101, limit_seconds=2.0)
    )

    @property
    def limits(self) -> TimeLimits:
        return TimeLimits(self.compile_limit_seconds, self.run_limit_seconds)

    @property
    def unbounded(self) -> Options:
        """The same options without limits on trials, seconds, gain and reach."""
        return replace(self, max_trials=None, budget_seconds=None, gain=None, reach=None)
