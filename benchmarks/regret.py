"""How soon each strategy finds a fast kernel: searches replayed, without a GPU, on spaces that were tried whole.

    python -m benchmarks.regret --db spaces.db --output docs/regret.md

Regret is the time of the fastest right kernel that a search has found after some of its trials, over the fastest that
is known of the space, less 1. Each strategy is asked and told as in a run: a candidate has the outcome and the time
that the database has. As in a run, candidates are compiled ahead of their trials.

`model` knows what the package brings, the problem itself among it. `model, others` does not know what the package has
for this problem; `model, none` has nothing measured at all; `model, warm` has, in place of what the package brings,
the winners of the other spaces in the database.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from math import inf
from typing import cast

from tsm2_tune.generator.candidate import Candidate
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.families import FAMILIES
from tsm2_tune.generator.profiles import PROFILES
from tsm2_tune.generator.source import KernelSource
from tsm2_tune.generator.space import SearchSpace, search_space
from tsm2_tune.options import REACH
from tsm2_tune.tuner.past import Claimed
from tsm2_tune.tuner.search import Search
from tsm2_tune.tuner.store import Store
from tsm2_tune.tuner.strategies.strategy import Strategy, Told
from tsm2_tune.tuner.trial import Outcome
from tsm2_tune.tuner.waiting import Compiled, Pending

SHARES = (0.01, 0.02, 0.05, 0.1, 0.25)  # of the trials of a space
AHEAD = 17  # candidates that are compiled ahead of their trials: of a machine with 16 cores
LEAST_COVERED = 0.95  # of a space, for it to count as tried whole


@dataclass(frozen=True, slots=True)
class Recorded:
    """A space that was tried on a device."""

    device: str
    space: SearchSpace
    told: Mapping[KernelConfig, Told]

    @property
    def trials(self) -> int:
        """How many configurations of the space were tried."""
        return len(self.told)

    @property
    def best_us(self) -> float:
        """The fastest that is known."""
        return min((one.us for one in self.told.values() if one.is_right and one.us is not None), default=inf)


def recorded(store: Store) -> Iterator[Recorded]:
    """The spaces of the database that were tried whole, of each device."""
    for device in store.devices():
        limits = next(one for name, one in PROFILES.items() if name in device.lower())
        problems = sorted({one.problem for one in store.current(device) if not one.is_between})
        for problem in problems:
            told = {}
            for basis in dict.fromkeys(one.basis for one in store.current(device, problem)):
                for one in store.history(device, problem, tuple(FAMILIES), basis).tried():
                    may_win = one.outcome in (Outcome.OK, Outcome.BEHIND)  # which was behind what was tried before
                    told[one.config] = Told(one.config, one.median_us, may_win)
            space = search_space(problem, limits)
            covered = sum(one.config in told for one in space.kept) / max(len(space.kept), 1)
            if covered >= LEAST_COVERED:
                yield Recorded(device, space, told)


def replayed(
    strategy: Strategy, of: Recorded, most: int, ahead: int = AHEAD, gain: float | None = None
) -> list[Told]:
    """The trials of a search, in order; what was not tried then is passed over."""

    def claim(candidate: Candidate) -> Claimed:
        return Claimed.YES if candidate.config in of.told else Claimed.ELSEWHERE

    def begun(candidate: Candidate) -> tuple[KernelSource, Compiled]:
        return cast(KernelSource, None), Future()

    search = Search(strategy, claim=claim, most=most, gain=gain)
    pending, found, fastest_us = Pending(search, search, begun, ahead), list[Told](), inf
    while not search.is_over and (one := pending.take()) is not None:
        told = of.told[one[0].config]
        is_behind = told.us is None or told.us > REACH * fastest_us
        found.append(replace(told, is_right=told.is_right and not is_behind))
        search.tell(found[-1])
        if found[-1].is_right and told.us is not None:
            fastest_us = min(fastest_us, told.us)
    return found
