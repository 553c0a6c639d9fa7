"""The class Options: the options of a search."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tsm2_tune.generator.scalars import plain
from tsm2_tune.tuner.measure.timing import Effort
from tsm2_tune.tuner.results.trial import IN_FINALS, Cache, Outcome, TimeLimits

TOGETHER_SECONDS = 0.1  # trials that end within this time share one database transaction


@dataclass(frozen=True, slots=True)
@plain
class Options:
    """Options of a search: limits, strategy, L2 states and measuring effort."""

    seed: int = 0
    max_trials: int | None = None  # for each problem, including earlier runs
    budget_seconds: float | None = None  # for each problem, including earlier runs
    least_trials: int = 0  # for each problem in this run, even beyond the budget
    compile_limit_seconds: float = 120.0
    run_limit_seconds: float = 60.0  # for each stage of a trial: loading, verification, timing
    retried: frozenset[Outcome] = frozenset()  # earlier trials with these outcomes count as untried
    sharing: int = 1  # number of devices that share this machine's processors
    vendor: bool = False  # whether cuBLAS and cuBLASLt are timed in finals
    # On a GPU a trial ends early if its first launches take more than this many times the fastest time so far. None:
    # every trial is verified and timed in full.
    reach: float | None = None
    strategy: str = "model"  # name of the search strategy
    gain: float | None = None  # the search ends if the predicted relative gain is less; None: never
    cache: Cache = Cache.DIRTY  # L2 state in which trials are timed and kernels are ranked
    storage_seconds: float = TOGETHER_SECONDS
    final_caches: tuple[Cache, ...] = IN_FINALS  # additional L2 states for finals
    # 2 ms suffice, because the verification before it warms up the GPU: on an H100 the medians of 245 kernels after
    # 2 ms and after 20 ms differed no more than repeated measurements do.
    effort: Effort = field(default_factory=lambda: Effort(warm_up_seconds=0.002))
    final_effort: Effort = field(
        default_factory=lambda: Effort(spread=0.002, min_samples=21, max_samples=101, limit_seconds=2.0)
    )

    @property
    def limits(self) -> TimeLimits:
        return TimeLimits(self.compile_limit_seconds, self.run_limit_seconds)

    @property
    def unbounded(self) -> Options:
        """A copy of the options without limits on trials, seconds, gain and reach."""
        return replace(self, max_trials=None, budget_seconds=None, gain=None, reach=None)
