"""Measure a database with many GPUs: bytes, writes and reads per second, from which docs/scale.md calculates.

    python -m benchmarks.scale_rates --output benchmarks/results/sqlite-rates.json
    python -m benchmarks.scale_rates --db postgresql+psycopg://... --output benchmarks/results/postgresql-rates.json

A process stands for the parent process of a node, and each of its threads for a GPU. Each thread leases problems and
stores made-up trials of them as fast as it can. The trials have real configurations and kernel sources, and as many
samples as in real searches. No GPU is needed. A database server must run on this machine, and its database must be
empty.
"""

from __future__ import annotations

import itertools
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import click

import tsm2_tune
from benchmarks import scale_facts
from tsm2_tune.commands.errors import Command
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.device.roofline import Ceilings
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.generator.space.space import search_space
from tsm2_tune.tuner.measure.timing import measurement
from tsm2_tune.tuner.results.fingerprint import basis
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import (
    Cache,
    DeviceIdentity,
    LoadedResources,
    Outcome,
    TimeLimits,
    Trial,
    TuningRun,
    Verdict,
)  # fmt: skip
from tsm2_tune.tuner.runs.leases import Leases
from tsm2_tune.tuner.search.resume import Retries

DEVICE = "a made-up GPU"
LIMITS = TimeLimits(120.0, 60.0)
AGAIN = Retries(LIMITS, frozenset())
EVERY = 4  # one of this many trials is correct; the others are too slow ("behind")
SAMPLES = {Outcome.OK: 35, Outcome.BEHIND: 10}  # mean of h100-pack.db.xz: 34.8; most of an early end
TOGETHER = 2  # trials stored per transaction: 17 per second end within 0.1 s
GPUS_PER_NODE = 8
OF_PROBLEM = 340  # trials per problem: 17 per second for 20 seconds
FILLER = 1000  # an unused GPU number
MANY = 1_000_000  # trials in the database when queries about one problem are timed
READS = 20  # a query's time is the mean of this many
ROUNDS = 3  # rounds per number of parents; the one with the most stored trials counts


@dataclass(frozen=True, slots=True)
class Written:
    """The writes of a parent, and its processor time."""

    trials: int
    transactions: int
    processor_seconds: float  # of its process, without the server


def run_of(number: int) -> TuningRun:
    identity = DeviceIdentity(DEVICE, f"GPU-{number}", "9.0", "580.1", "nvcc 13.0", "-O3")
    ceilings = Ceilings(3e3, 2.8e3, (("f32", 6e4), ("f64", 3e4)))
    return TuningRun(identity, ceilings, seed=0, version="0.1.0", started_at="2026-01-01T00:00:00+00:00", sms=132)


def trials_of_a_problem() -> tuple[Trial, ...]:
    """Return as many trials as a search of 20 seconds tries, with their kernel sources."""
    problem, identity = Problem(4096, 8, 4096, "f32"), run_of(0).identity
    found = search_space(problem, PROFILES["h100"]).kept
    kept = found[:: max(1, len(found) // OF_PROBLEM)][:OF_PROBLEM]
    key = basis(identity.toolkit, identity.flags, Cache.DIRTY)
    return tuple(_trial(problem, one.config, key, at) for at, one in enumerate(kept))


def _trial(problem: Problem, config: KernelConfig, key: str, at: int) -> Trial:
    outcome = Outcome.BEHIND if at % EVERY else Outcome.OK
    right = outcome is Outcome.OK
    samples = [35.0 + (at * 31 + place * 17) % 101 / 7 for place in range(SAMPLES[outcome])]
    return Trial(
        problem, config, key, render(problem, config), outcome, "" if right else "its first launches took too long",
        LoadedResources(64, 0, 4096, 8), 0, None, Verdict(True, 0.01, "every element is right") if right else None,
        measurement(samples, 1980.0, Cache.DIRTY), 30.0, 1.0, 0.06, LIMITS, cache=Cache.DIRTY,
    )  # fmt: skip


def problems_of(number: int) -> Iterator[Problem]:
    """Return the problems of one GPU."""
    return (Problem(4096 + number, 8, k, "f32") for k in itertools.count(4096))


def written(name: str, parent: int, gpus: int, seconds: float) -> Written:
    """Store trials in one thread for each GPU of a node, until the time is over."""
    trials, end, before = trials_of_a_problem(), time.monotonic() + seconds, time.process_time()
    with Store.open(name, create=True) as store, store.leases(DEVICE) as leases, ThreadPoolExecutor(gpus) as threads:
        of_gpu = partial(_written_for_a_gpu, store, leases, trials, end)
        found = list(threads.map(of_gpu, range(parent * gpus, (parent + 1) * gpus)))
    stored, transactions = (sum(counts) for counts in zip(*found, strict=True))
    return Written(stored, transactions, time.process_time() - before)


def _written_for_a_gpu(
    store: Store, leases: Leases, trials: Sequence[Trial], end: float, gpu: int
) -> tuple[int, int]:
    """Lease problems and store trials, at least some, until the time `end`. Return the trials and transactions."""
    run, stored, transactions = run_of(gpu), 0, 0
    for problem in problems_of(gpu):
        own = [replace(trial, problem=problem) for trial in trials]
        leases.take(problem)
        transactions += 1
        for first in range(0, len(own), TOGETHER):
            if stored and time.monotonic() >= end:
                return stored, transactions
            some = own[first : first + TOGETHER]
            store.add_trials(run, some, AGAIN)
            stored += len(some)
            transactions += 1
        leases.release(problem)
        transactions += 1
    raise AssertionError("problems have no end")


def measured(name: str, parents: Sequence[int], gpus: int, seconds: float) -> list[dict[str, Any]]:
    """Return a row for each number of parents that write concurrently. `gpus` is the number of GPUs of each."""
    rows = []
    for count in parents:
        rounds = [_together(name, count, gpus, seconds) for _ in range(ROUNDS)]
        rows.append(max(rounds, key=lambda row: row["trials_per_second"]))
        _tell(rows[-1])
    return rows


def _together(name: str, count: int, gpus: int, seconds: float) -> dict[str, Any]:
    before = scale_facts.processor_seconds(name)
    with get_context("spawn").Pool(count) as pool:
        found = pool.starmap(written, [(name, parent, gpus, seconds) for parent in range(count)])
    stored = sum(one.trials for one in found)
    in_parents = sum(one.processor_seconds for one in found)
    on_server = scale_facts.processor_seconds(name) - before if scale_facts.is_address(name) else 0.0
    return {
        "parents": count,
        "trials_per_second": stored / seconds,
        "transactions_per_second": sum(one.transactions for one in found) / seconds,
        "parent_seconds_per_trial": in_parents / stored,
        "server_seconds_per_trial": on_server / stored,
    }


def _tell(row: dict[str, Any]) -> None:
    click.echo(", ".join(f"{key} {value:.4g}" for key, value in row.items()))


def looks(name: str) -> list[dict[str, float]]:
    """Return the times of a run's queries about a problem, with the present trials and with MANY trials."""
    run, trials, first = run_of(FILLER), trials_of_a_problem(), next(problems_of(FILLER))
    families = tuple({trial.config.family for trial in trials})
    rows = []
    with Store.open(name, create=True) as store:
        store.add_trials(run, [replace(trial, problem=first) for trial in trials], AGAIN)
        for least in (0, MANY):
            missing = -(-max(0, least - scale_facts.trials(name)) // len(trials))
            scale_facts.crowd(store.database, DEVICE, first, itertools.islice(problems_of(FILLER), 1, 1 + missing))
            history = store.history(DEVICE, first, families, trials[0].basis)
            winner = partial(store.best, device=DEVICE, problem=first)
            row = {"winner_seconds": _seconds(name, winner), "history_seconds": _seconds(name, history.tried)}
            rows.append({"trials": scale_facts.trials(name), **row})
            _tell(rows[-1])
    return rows


def _seconds(name: str, call: Callable[[], object]) -> float:
    """Return the processor seconds that the database needs for a call, averaged over READS calls."""
    before = scale_facts.processor_seconds(name)
    for _ in range(READS):
        call()
    return (scale_facts.processor_seconds(name) - before) / READS


def rates(name: str, parents: Sequence[int], gpus: int, seconds: float) -> dict[str, Any]:
    """Return all measurements of one database."""
    facts = {
        "command": "python -m benchmarks.scale_rates",
        "date": datetime.now(UTC).date().isoformat(),
        "database": scale_facts.version(name),
        "cores": len(os.sched_getaffinity(0)),
        "tsm2_tune": tsm2_tune.__version__,
        "in_one_transaction": TOGETHER,
        "gpus_per_node": gpus,
        "rows": measured(name, parents, gpus, seconds),
    }
    own = {} if scale_facts.is_address(name) else {"asked": scale_facts.asked_of_a_problem()}
    facts |= {"tables": scale_facts.tables(name), "reads": looks(name)}
    return {**facts, **own, "recorded": scale_facts.recorded()}


@click.command(cls=Command)
@click.option("--db", help="Address of an empty database; without it a new file.")
@click.option("--parents", default="1,2,4", show_default=True, help="How many at a time, separated by commas.")
@click.option("--gpus-per-node", type=click.IntRange(1), default=GPUS_PER_NODE, show_default=True)
@click.option("--seconds", type=float, default=20.0, show_default=True, help="For each number of parents.")
@click.option("--output", required=True, type=click.Path(dir_okay=False, path_type=Path))
def main(db: str | None, parents: str, gpus_per_node: int, seconds: float, output: Path) -> None:
    """Measure the rates of a database."""
    counts = [int(one) for one in parents.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        found = rates(db or str(Path(folder) / "results.db"), counts, gpus_per_node, seconds)
    output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
