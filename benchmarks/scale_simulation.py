"""Simulate how long GPUs wait for one database when many tune at once, transaction by transaction.

    python -m benchmarks.scale_simulation

Each GPU produces trials at the rate of its kind. A thread of its node's parent process stores the trials that have
ended in one transaction, at most every tenth of a second. The GPU's process has some candidates in advance: if it has
tried them before the transaction ends, the GPU waits. A transaction occupies one of the server's processors;
transactions are served in order of arrival. Their times are exponentially distributed around the recorded mean, which
is proportional to the number of trials. Rates are those of benchmarks.scale; the speeds of the kinds of GPUs are
assumptions. The processor time of parents is not simulated.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import click

from benchmarks.scale import SERVER_CORES, Recorded, Search, recorded
from benchmarks.tables import markdown
from tsm2_tune.commands.errors import Command
from tsm2_tune.tuner.search.options import TOGETHER_SECONDS

SPEEDS = (0.4, 0.7, 1.0, 1.3, 1.6)  # speeds of the kinds of GPUs, relative to the recorded GPU
NUMBERS = (100, 500, 700, 1000, 2000)
WARM_UP_SECONDS, SECONDS = 10.0, 30.0  # simulated time before counting, and counted time
SEED = 0


@dataclass(frozen=True, slots=True)
class Load:
    """The trials of one GPU, and what storing them costs its database server."""

    trials_per_second: float  # if the GPU never waits
    server_seconds: float  # server's processor seconds to store one trial
    ahead: int  # candidates that the GPU's process has in advance

    def next_store(self, next_trial: float, stored: float) -> tuple[float, int]:
        """Return when the next transaction begins, and its number of trials.

        `stored` is the end of the last transaction. The next trial ends at `next_trial` if the GPU does not wait. It
        waits if `ahead` trials have ended before `stored`.
        """
        rate = self.trials_per_second
        ended = max(0, math.floor((stored - next_trial) * rate) + 1)
        if ended >= self.ahead:
            ended, next_trial = self.ahead, stored + 1 / rate
        else:
            next_trial += ended / rate
        more = max(0, math.ceil((stored + TOGETHER_SECONDS - next_trial) * rate))
        return next_trial + more / rate, ended + more + 1


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
    # Next transactions: begin, GPU, number of trials.
    asking = [(chance.random() / one.trials_per_second, number, 1) for number, one in enumerate(loads)]
    heapq.heapify(asking)
    free = [0.0] * cores  # times at which the processors become free
    end, stored, busy, waits = WARM_UP_SECONDS + SECONDS, 0, 0.0, list[float]()
    while asking[0][0] < end:
        asked, number, trials = heapq.heappop(asking)
        load = loads[number]
        begun = max(asked, heapq.heappop(free))
        took = chance.expovariate(1 / (trials * load.server_seconds))
        heapq.heappush(free, begun + took)
        following, count = load.next_store(asked + 1 / load.trials_per_second, begun + took)
        heapq.heappush(asking, (following, number, count))
        if asked >= WARM_UP_SECONDS:
            stored, busy = stored + trials, busy + took
            waits.append(begun - asked)
    unbound = sum(one.trials_per_second for one in loads) * SECONDS
    return Simulated(len(loads), stored / unbound, min(1.0, busy / SECONDS / cores), tuple(sorted(waits)))


def mixed(search: Search, found: Recorded, gpus: int) -> list[Load]:
    """Return equally many GPUs of each kind. Each has as many cores as the recorded GPU."""
    ahead = 2 * (found.cores + 1)  # as RemoteExecutor and least_ahead have it
    trial = Load(search.trials / search.seconds, found.postgresql.best["server_seconds_per_trial"], ahead)
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
        waits = [f"{1000 * one.wait(share):,.0f}" for share in (0.5, 0.99)]
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
