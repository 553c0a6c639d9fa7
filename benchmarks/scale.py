"""Calculate the database size, GPU hours and bottlenecks of tuning many shapes on many GPUs, for docs/scale.md.

    python -m benchmarks.scale
    python -m benchmarks.scale --shapes 500 --gpus 8 --kinds 1

It is arithmetic on recorded rates, and assumes that all GPUs do the same all the time. A node has several GPUs of one
kind. Its *parent process* has the searches and the database, and stores the trials of all GPUs of the node.
benchmarks.scale_simulation simulates the waiting for a database. The rates of a search on a GPU are in
h100-trial-rate-asked-ahead.json, and those of databases in sqlite-rates.json and postgresql-rates.json. There a
process stood for the parent process of a node, and each of its threads for a GPU: it leased problems and stored
synthetic trials as fast as it could.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from benchmarks.tables import markdown
from tsm2_tune.commands.errors import Command
from tsm2_tune.tuner.results.trial import IN_FINALS, Outcome
from tsm2_tune.tuner.runs.leases import RENEWAL_SECONDS
from tsm2_tune.tuner.search.finals import FINALISTS
from tsm2_tune.tuner.search.options import TOGETHER_SECONDS

RESULTS = Path(__file__).parent / "results"
SEARCHES, SQLITE, POSTGRESQL = (
    RESULTS / f"{name}.json" for name in ("h100-trial-rate-asked-ahead", "sqlite-rates", "postgresql-rates")
)
GPUS_PER_NODE = 8
SAMPLES = {Outcome.OK: 35, Outcome.BEHIND: 10}  # mean of h100-pack.db.xz: 34.8; most of an early end
GOAL = 100.0  # trials per second: near the fastest recorded search with compiled kernels
ONCE = ("start", "start of the worker", "ceilings")  # phases that occur once per run, not per problem
LIBRARIES = 2  # cuBLAS and cuBLASLt
SERVER_CORES = 16  # assumed
LEASE_WRITES = 2  # of each problem: the lease is taken and released
MOST_CONNECTIONS = 97  # PostgreSQL's default less three for superusers
GIB, HOUR = 2**30, 3600.0


@dataclass(frozen=True, slots=True)
class Campaign:
    """The size of a campaign, which tunes each shape on each kind of GPU."""

    shapes: int
    gpus: int
    kinds: int
    gpus_per_node: int = GPUS_PER_NODE

    @property
    def parents(self) -> int:
        """The number of parent processes: one for each node."""
        return math.ceil(self.gpus / self.gpus_per_node)

    @property
    def connections_per_parent(self) -> int:
        """The most connections that a parent uses at a time: one for each GPU, and one to renew leases."""
        return self.gpus_per_node + 1

    @property
    def problems(self) -> int:
        return self.shapes * self.kinds


@dataclass(frozen=True, slots=True)
class Search:
    """The mean work of a run for one problem."""

    name: str
    trials: float
    right: float  # fraction of the trials that are correct
    seconds: float  # for a problem: the search, its finals, the full verification
    once_seconds: float  # for each run
    texts: float  # kernel sources not seen in earlier searches
    budget_seconds: float

    @property
    def per_second(self) -> float:
        """Trials per second of search."""
        return self.trials / self.budget_seconds


@dataclass(frozen=True, slots=True)
class Rates:
    """The measured rates of a kind of database."""

    found: Mapping[str, Any]

    @property
    def best(self) -> Mapping[str, float]:
        """The row with the number of processes that stored the most trials per second."""
        return max(self.found["rows"], key=lambda row: row["trials_per_second"])

    @property
    def look_seconds(self) -> float:
        """The processor seconds of a query for a problem's winner in a database of a million trials."""
        return float(max(self.found["reads"], key=lambda row: row["trials"])["winner_seconds"])

    def row_bytes(self, table: str) -> float:
        """Return the bytes of a row, including its indices. Rows of cuBLAS times are as long as those of kernels."""
        row = self.found["tables"][table.removeprefix("vendor_")]
        size: float = row["bytes"] / row["rows"]
        return size


@dataclass(frozen=True, slots=True)
class Recorded:
    """All recorded rates."""

    searches: tuple[Search, ...]
    sqlite: Rates
    postgresql: Rates
    texts: Mapping[str, float]  # growth of kernel sources with trials, and their compile time
    asked: Mapping[str, float]  # database calls per problem
    cores: int  # of the recorded GPU's machine


@dataclass(frozen=True, slots=True)
class Limit:
    """A resource that runs share, and the number of GPUs that saturates it."""

    name: str
    asked: str  # demand of each GPU
    there: str
    gpus: float


def recorded() -> Recorded:
    """Return the rates in the result files."""
    searched, sqlite, postgresql = (
        json.loads(path.read_text(encoding="utf-8")) for path in (SEARCHES, SQLITE, POSTGRESQL)
    )
    return Recorded(
        searches(searched["rows"]),
        Rates(sqlite),
        Rates(postgresql),
        sqlite["recorded"],
        sqlite["asked"],
        searched["cores"],
    )


def searches(rows: Sequence[Mapping[str, Any]]) -> tuple[Search, ...]:
    """Return two recorded searches, whose slow trials end early, and one with the desired rate of trials."""
    early = [row for row in rows if not row["in_full"]]
    cold, warm = (
        _search(name, [row for row in early if row["kernels"] == kernels])
        for name, kernels in (("no kernel compiled", "none compiled"), ("kernels compiled before", "compiled"))
    )
    goal = replace(warm, name=f"{GOAL:.0f} trials a second", trials=GOAL * warm.budget_seconds)
    return cold, warm, goal


def _search(name: str, rows: Sequence[Mapping[str, Any]]) -> Search:
    """Return the mean of recorded searches."""

    def mean(values: Sequence[float]) -> float:
        return sum(values) / len(rows)

    once = mean([sum(row["phases"].get(phase, 0.0) for phase in ONCE) for row in rows])
    trials = mean([row["trials"] for row in rows])
    return Search(
        name,
        trials=trials,
        right=mean([row["outcomes"]["ok"] for row in rows]) / trials,
        seconds=mean([sum(row["phases"].values()) for row in rows]) - once,
        once_seconds=once,
        texts=mean([row["texts"] for row in rows]),
        budget_seconds=mean([row["seconds"] for row in rows]),
    )


def hours(search: Search, campaign: Campaign) -> float:
    """Return the hours until the last GPU is done, if no shared resource is saturated."""
    return (search.once_seconds + math.ceil(campaign.problems / campaign.gpus) * search.seconds) / HOUR


def rows_of(search: Search, campaign: Campaign, texts: Mapping[str, float]) -> dict[str, float]:
    """Return {table: number of rows} for the database tables that grow."""
    trials = search.trials * campaign.problems
    finals, vendors = (count * len(IN_FINALS) * campaign.problems for count in (FINALISTS, LIBRARIES))
    own = search.right * SAMPLES[Outcome.OK] + (1 - search.right) * SAMPLES[Outcome.BEHIND]
    return {
        "trial": trials,
        "measurement": trials + finals,
        "sample": trials * own + finals * texts["samples_of_final"],
        "vendor_measurement": vendors,
        "vendor_sample": vendors * texts["samples_of_final"],
        "source": texts["texts"] * (trials / texts["trials"]) ** texts["texts_grow_by"],
    }


def bytes_of(rows: Mapping[str, float], rates: Rates) -> float:
    """Return the bytes of the tables and their indices."""
    return sum(count * rates.row_bytes(table) for table, count in rows.items())


def compiling_cores(search: Search, texts: Mapping[str, float]) -> float:
    """Return the CPU cores per GPU that compile during a search, if no kernel was compiled before."""
    return search.texts * texts["compile_seconds"] / search.budget_seconds


def sizes(campaign: Campaign, found: Recorded) -> str:
    """Return a Markdown table of the campaign's sizes, with one column per search."""
    each = [(search, rows_of(search, campaign, found.texts)) for search in found.searches]
    lines = [
        ["trials a second and GPU", *(f"{search.per_second:.0f}" for search, _ in each)],
        ["seconds a problem", *(f"{search.seconds:.0f}" for search, _ in each)],
        ["cores that compile, a GPU", f"{compiling_cores(found.searches[0], found.texts):.0f}", "fewer", "not known"],
        ["hours, where nothing is full", *(f"{hours(search, campaign):.2f}" for search, _ in each)],
        ["trials, millions", *(f"{rows['trial'] / 1e6:.1f}" for _, rows in each)],
        ["samples, millions", *(f"{rows['sample'] / 1e6:.0f}" for _, rows in each)],
        ["kernel texts, thousands", *(f"{rows['source'] / 1e3:.0f}" for _, rows in each)],
        ["GiB in SQLite", *(f"{bytes_of(rows, found.sqlite) / GIB:.0f}" for _, rows in each)],
        ["GiB in PostgreSQL", *(f"{bytes_of(rows, found.postgresql) / GIB:.0f}" for _, rows in each)],
    ]
    return markdown(("", *(search.name for search, _ in each)), lines, texts=("",))


def writes_per_second(search: Search, campaign: Campaign, found: Recorded) -> dict[str, float]:
    """Return the transactions per second of the campaign, by purpose."""
    in_one_transaction = max(1, math.ceil(search.per_second * TOGETHER_SECONDS))
    of_each_gpu = {
        "trials": search.trials / search.seconds / in_one_transaction,
        "leases": LEASE_WRITES / search.seconds,
        "finals": found.asked["writes"] / search.seconds,
    }
    return {
        **{purpose: campaign.gpus * writes for purpose, writes in of_each_gpu.items()},
        "renewals": campaign.parents / RENEWAL_SECONDS,
    }


def writes(campaign: Campaign, found: Recorded) -> str:
    """Return a Markdown table of the campaign's transactions per second by purpose, with one column per search."""
    each = [writes_per_second(search, campaign, found) for search in found.searches]
    each = [{**one, "all": sum(one.values())} for one in each]
    lines = [[purpose, *(f"{one[purpose]:,.0f}" for one in each)] for purpose in each[0]]
    return markdown(("", *(search.name for search in found.searches)), lines, texts=("",))


def limits(search: Search, campaign: Campaign, found: Recorded) -> list[Limit]:
    """Return the resources that GPUs share, sorted by the number of GPUs that saturate each."""
    connections = campaign.connections_per_parent / campaign.gpus_per_node
    trials = search.trials / search.seconds
    looks = found.asked["winners"] / search.seconds * found.postgresql.look_seconds
    server = found.postgresql.best["server_seconds_per_trial"] * trials
    in_file = found.sqlite.best["trials_per_second"]
    cores = f"{SERVER_CORES} cores"
    return sorted(
        [
            Limit("looks for winners", f"{looks:.4f} cores", cores, SERVER_CORES / looks),
            Limit(
                "connections to PostgreSQL",
                f"{connections:.1f}",
                f"{MOST_CONNECTIONS} by default",
                MOST_CONNECTIONS / connections,
            ),
            Limit(
                "trials into one SQLite file",
                f"{trials:.1f} a second",
                f"{in_file:.0f} a second",
                in_file / trials,
            ),
            Limit("PostgreSQL's processors", f"{server:.3f} cores", cores, SERVER_CORES / server),
        ],
        key=lambda limit: limit.gpus,
    )


def limit_table(search: Search, campaign: Campaign, found: Recorded) -> str:
    """Return a Markdown table of shared resources. The resource that is saturated first is at the top."""
    lines = [(one.name, one.asked, one.there, f"{one.gpus:,.0f}") for one in limits(search, campaign, found)]
    return markdown(("shared", "each GPU asks for", "there is", "full with GPUs"), lines, texts=("shared",))


def drawn(campaign: Campaign, found: Recorded) -> dict[str, str]:
    """Return {name of a region in docs: Markdown}."""
    return {
        "scale-sizes": sizes(campaign, found),
        "scale-writes": writes(campaign, found),
        "scale-limits": limit_table(found.searches[0], campaign, found),
    }


@click.command(cls=Command)
@click.option("--shapes", type=click.IntRange(1), default=10_000, show_default=True)
@click.option("--gpus", type=click.IntRange(1), default=1_000, show_default=True)
@click.option("--kinds", type=click.IntRange(1), default=5, show_default=True, help="Kinds of GPU.")
@click.option("--gpus-per-node", type=click.IntRange(1), default=GPUS_PER_NODE, show_default=True)
def main(shapes: int, gpus: int, kinds: int, gpus_per_node: int) -> None:
    """Print the tables of a campaign."""
    campaign = Campaign(shapes, gpus, kinds, gpus_per_node)
    click.echo("\n\n".join(drawn(campaign, recorded()).values()))


if __name__ == "__main__":
    main()
