"""Simulate how long GPUs wait for one database when many tune at once, transaction by transaction.

    python -m benchmarks.scale_simulation

Each GPU produces trials at the rate of its kind. It stores the trials of a tenth of a second in one transaction, and
waits for it. A transaction occupies one of the server's processors; transactions are served in order of arrival.
Their times are exponentially distributed around the recorded mean. Rates are those of benchmarks.scale; the speeds of
the kinds of GPUs are assumptions.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import click

from benchmarks.headline import markdown
from benchmarks.scale import SERVER_CORES, Recorded, Search, recorded
from tsm2_tune.commands.errors import Command
from tsm2_tune.tuner.search.session import TOGETHER_SECONDS

SPEEDS = (0.4, 0.7, 1.0, 1.3, 1.6)  # speeds of the kinds of GPUs, relative to the recorded GPU
NUMBERS = (100, 500, 700, 1000, 2000)
WARM_UP_SECONDS, SECONDS = 10.0, 30.0  # simulated time before counting, and counted time
SEED = 0


@dataclass(frozen=True, slots=True)
class Load:
    """The trials of one GPU, and what storing them costs its database server."""

    trials_per_second: float  # if the GPU never waits
    server_seconds: float  # server's processor seconds to store one trial

    @property
    def in_one_transaction(self) -> int:
        """The number of trials in a transaction."""
        return max(1, math.ceil(self.trials_per_second * TOGETHER_SECONDS))


@dataclass(frozen=True, slots=True)
class Simulated:
    """The simulated result for a number of GPUs."""

    gpus: int
    trials: float  # stored trials over those of GPUs that never wait
    busy: float  # share of the server's processors
    waits: tuple[float, ...]  # seconds that transactions waited for a processor, sorted

    def wait(self, share: float) -> float:
        """Return the waiting time that this share of the transactions does not exceed."""
        return self.waits[min(len(self.waits) - 1, int(share * len(self.waits)))]


def simulated(loads: Sequence[Load], cores: int, seed: int = SEED) -> Simulated:
    """Simulate one server with this many processors, and the GPUs that store trials in it."""
    chance = random.Random(seed)
    asking = [(chance.random() * TOGETHER_SECONDS, number) for number in range(len(loads))]  # next transactions
    heapq.heapify(asking)
    free = [0.0] * cores  # times at which the processors become free
    end, stored, busy, waits = WARM_UP_SECONDS + SECONDS, 0, 0.0, list[float]()
    while asking[0][0] < end:
        asked, number = heapq.heappop(asking)
        load = loads[number]
        begun = max(asked, heapq.heappop(free))
        took = chance.expovariate(1 / (load.in_one_transaction * load.server_seconds))
        heapq.heappush(free, begun + took)
        heapq.heappush(asking, (begun + took + load.in_one_transaction / load.trials_per_second, number))
        if asked >= WARM_UP_SECONDS:
            stored, busy = stored + load.in_one_transaction, busy + took
            waits.append(begun - asked)
    unbound = sum(one.trials_per_second for one in loads) * SECONDS
    return Simulated(len(loads), stored / unbound, min(1.0, busy / SECONDS / cores), tuple(sorted(waits)))


def mixed(search: Search, found: Recorded, gpus: int) -> list[Load]:
    """Return equally many GPUs of each kind."""
    trial = Load(search.trials / search.seconds, found.postgresql.best["server_seconds_per_trial"])
    return [
        replace(trial, trials_per_second=trial.trials_per_second * SPEEDS[number % len(SPEEDS)])
        for number in range(gpus)
    ]


def made_apart(loads: Sequence[Load]) -> float:
    """Return the fraction of trials that remain with waiting, if each kind of GPU has its own server."""
    kinds = [loads[kind :: len(SPEEDS)] for kind in range(len(SPEEDS))]
    rates = [sum(one.trials_per_second for one in of_kind) for of_kind in kinds]
    made = [simulated(of_kind, SERVER_CORES).trials * rate for of_kind, rate in zip(kinds, rates, strict=True)]
    return sum(made) / sum(rates)


def table(found: Recorded) -> str:
    """Return a Markdown table by number of GPUs: one server for all, and one for each kind."""
    lines = []
    for gpus in NUMBERS:
        loads = mixed(found.searches[0], found, gpus)
        one = simulated(loads, SERVER_CORES)
        waits = [f"{1000 * one.wait(share):.0f}" for share in (0.5, 0.99)]
        shares = [f"{100 * share:.0f} %" for share in (one.busy, one.trials, made_apart(loads))]
        lines.append([f"{gpus:,}", shares[0], *waits, *shares[1:]])
    return markdown(
        ("GPUs", "busy", "half wait, ms", "99 %, ms", "trials", "trials, a server a kind"), lines, texts=()
    )


@click.command(cls=Command)
def main() -> None:
    """Print the table."""
    click.echo(table(recorded()))


if __name__ == "__main__":
    main()
