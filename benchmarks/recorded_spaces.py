"""Write the trials of completely tried search spaces from a database to a file small enough for the repository.

    python -m benchmarks.recorded_spaces spaces.db --output benchmarks/results/h100-spaces.json.xz

The database comes from `tsm2-tune --budget 0` with the same shapes: every configuration that the rules keep was
tried, for all families or some. The file contains each trial's configuration, outcome and median time. If the outcome
is "behind", the time is that of the first launches.
"""

from __future__ import annotations

import json
import lzma
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import click

from benchmarks.result_file import program_facts, require_new
from tsm2_tune.commands.errors import Command
from tsm2_tune.errors import InputError
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.families import FAMILIES, parse_config
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.space import SearchSpace, search_space
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Outcome
from tsm2_tune.tuner.search.strategies.strategy import TrialResult

FILE = Path(__file__).parent / "results/h100-spaces.json.xz"
WHOLE = 0.5  # a family counts as recorded if this share of its configurations was tried
MAY_WIN = (Outcome.OK, Outcome.BEHIND)  # BEHIND too: another strategy may try it before any faster kernel


@dataclass(frozen=True, slots=True)
class Recorded:
    """A search space of some families, and the results of its trials."""

    device: str
    space: SearchSpace
    told: Mapping[KernelConfig, TrialResult]

    @property
    def problem(self) -> Problem:
        """The problem of the space."""
        return self.space.problem

    @property
    def trials(self) -> int:
        """The number of tried configurations."""
        return sum(one.config in self.told for one in self.space.kept)

    @property
    def best_us(self) -> float:
        """The least time of a correct configuration; infinite if there is none."""
        times = (self.told[one.config] for one in self.space.kept if one.config in self.told)
        return min((one.us for one in times if one.is_right and one.us is not None), default=inf)


def rows_of(store: Store) -> Iterator[dict[str, Any]]:
    """Yield the trials of each GPU and problem.

    The CPU is left out: its times are those of an emulation.
    """
    for device in store.devices():
        if not store.newest_run(device).identity.compute_capability:
            continue
        current = defaultdict[Problem, set[str]](set)
        for one in store.current(device):
            current[one.problem].add(one.basis)
        for problem, bases in sorted(current.items()):
            of_bases = (store.history(device, problem, tuple(FAMILIES), basis).tried() for basis in sorted(bases))
            trials = [[one.config.text, one.outcome.value, one.median_us] for of in of_bases for one in of]
            yield {"device": device, "problem": problem.text, "trials": trials}


def limits_of(device: str) -> DeviceLimits:
    """Return the limits of the GPU model that the device's name contains. Raise InputError for an unknown model."""
    for name, limits in PROFILES.items():
        if name in device.lower():
            return limits
    raise InputError(f"no bundled card is {device!r}: expected one of {', '.join(PROFILES)}")


def space_of(row: Mapping[str, Any]) -> Recorded:
    """Return the space of the families of which the row has at least half of the configurations."""
    told: dict[KernelConfig, TrialResult] = {}
    for text, outcome, us in row["trials"]:
        config = parse_config(text)
        if config is not None:
            told[config] = TrialResult(config, us, Outcome(outcome) in MAY_WIN and us is not None)
    problem, limits = Problem.parse(row["problem"]), limits_of(row["device"])
    kept = search_space(problem, limits).kept
    every = Counter(one.config.family for one in kept)
    tried = Counter(one.config.family for one in kept if one.config in told)
    families = [name for name, count in tried.items() if count >= WHOLE * every[name]]
    return Recorded(row["device"], search_space(problem, limits, families=families), told)


@click.command(cls=Command)
@click.argument("database", metavar="DATABASE", type=click.Path(exists=True, dir_okay=False))
@click.option("--output", default=FILE, show_default=True, type=click.Path(dir_okay=False, path_type=Path))
def main(database: str, output: Path) -> None:
    """Write the trials of each problem in the database."""
    require_new(output)
    with Store.open(database, create=False) as store:
        rows = list(rows_of(store))
    facts = {"command": "python -m benchmarks.recorded_spaces", **program_facts(), "rows": rows}
    with lzma.open(output, "wt", preset=9 | lzma.PRESET_EXTREME, encoding="utf-8") as file:
        json.dump(facts, file, separators=(",", ":"))
    click.echo(f"wrote {output}: {sum(len(row['trials']) for row in rows)} trials of {len(rows)} problems")


if __name__ == "__main__":
    main()
