"""Measure how soon each search strategy finds a fast kernel, by replaying searches on completely tried spaces.

    python -m benchmarks.regret                                 # of benchmarks/results/h100-spaces.json.xz
    python -m benchmarks.regret --db results.db --output regret.json

It needs no GPU. Regret is the time of the fastest correct kernel found after some trials, divided by the least time
in the space, minus 1. Trials return recorded times; a trial is "behind" if its recorded time is too long compared
with the fastest so far. Candidates are compiled ahead of their trials, as in a real run. Late tunables, which a
search varies only at its end, are left out. For random strategies, the regret is the mean over seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import inf
from multiprocessing import get_context
from pathlib import Path
from statistics import mean
from typing import Any, cast

import click
import numpy as np

from benchmarks.recorded_spaces import FILE, Recorded, limits_of, rows_of, space_of
from benchmarks.result_file import program_facts, read, require_new, write_json
from benchmarks.tables import markdown
from tsm2_tune.api.parse import REACH
from tsm2_tune.commands.errors import Command
from tsm2_tune.errors import InputError
from tsm2_tune.generator.families import parse_config
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.source import KernelSource
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.generator.space.columnar import Chosen
from tsm2_tune.generator.space.order import first_and_rest
from tsm2_tune.generator.space.seed_table import Choice, Measured
from tsm2_tune.generator.space.seeds import packaged
from tsm2_tune.generator.space.space import SearchSpace
from tsm2_tune.tuner.compile.pool import Compiled
from tsm2_tune.tuner.packs.candidate_times import candidate_times_us
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import CompileFailure, Outcome
from tsm2_tune.tuner.search.candidates import Search, Why
from tsm2_tune.tuner.search.compile_queue import CompileQueue
from tsm2_tune.tuner.search.stored_seeds import MOST_KERNELS
from tsm2_tune.tuner.search.strategies import strategy_named
from tsm2_tune.tuner.search.strategies.model import Model
from tsm2_tune.tuner.search.strategies.strategy import InOrder, Strategy

SHARES = (0.01, 0.02, 0.05, 0.1, 0.25)  # regret is reported after these shares of a space's trials
GAINS = (0.005, 0.01, 0.02, 0.05)
NAMED = ("exhaustive", "random", "optuna:tpe", "optuna:nsgaii")
OF_GAIN = ("model, other shapes", "model, nothing measured")
SEEDS = {"random": 5}  # number of seeds; other strategies have one
AHEAD = 17  # candidates compiled ahead of their trials, as on a machine with 16 cores
WITHIN = 0.02  # the goal for the regret after a tenth of the trials


@dataclass(frozen=True, slots=True)
class Row:
    """The regrets of a strategy on a space."""

    strategy: str
    problem: str
    trials: int  # number of trials of the whole space
    regrets: tuple[float, ...]  # after each of SHARES


@dataclass(frozen=True, slots=True)
class Ended:
    """A replayed search that ended because of --gain."""

    strategy: str
    problem: str
    gain: float
    share: float  # share of the space's trials that the search used
    missed: float  # regret


def in_order(of: Recorded, near: Sequence[Measured]) -> Strategy:
    """Return a strategy that tries first choices and then follows the time model, regardless of results."""
    first, others = first_and_rest(of.space, 0, candidate_times_us, near)
    return InOrder([*first, *others])


def by_model(of: Recorded, near: Sequence[Measured]) -> Strategy:
    """Return the default strategy, with first choices from the measurements `near`."""
    return Model(*first_and_rest(of.space, 0, candidate_times_us, near), late=False)


def without_any(of: Recorded) -> Strategy:
    """Return the default strategy without first choices."""
    by_time = np.argsort(candidate_times_us(of.space.kept), kind="stable")
    return Model((), Chosen(of.space.kept, by_time), late=False)


def fastest(row: Mapping[str, Any]) -> Measured:
    """Return the fastest recorded kernels of a space as a measurement, from which first choices are derived."""
    right = [(us, text) for text, outcome, us in row["trials"] if outcome == Outcome.OK]
    spelt = ((parse_config(text), us) for us, text in sorted(right)[:MOST_KERNELS])
    choices = tuple(Choice(config.early, us) for config, us in spelt if config is not None)
    return Measured(limits_of(row["device"]), Problem.parse(row["problem"]), choices)


def _named(name: str, space: SearchSpace, seed: int) -> Strategy:
    return strategy_named(name)(space, seed, ())


def strategies(of: Recorded, known: Sequence[Measured]) -> dict[str, Callable[[int], Strategy]]:
    """Return {name: function from a seed to a strategy}.

    `known` contains the winners of the other spaces.
    """
    brought = packaged(of.problem, of.space.limits)
    others = packaged(of.problem, of.space.limits, without=of.problem)
    return {
        **{name: partial(_named, name, of.space) for name in NAMED},
        "first choices of other shapes, no trials told": lambda _: in_order(of, others),
        "model": lambda _: by_model(of, brought),
        "model, other shapes": lambda _: by_model(of, others),
        "model, nothing measured": lambda _: without_any(of),
        "model, own database alone": lambda _: by_model(of, known),
    }


def replayed(strategy: Strategy, of: Recorded, *, most: int | None = None, gain: float | None = None) -> Replay:
    """Replay a search on a recorded space. Configurations without a recorded trial are skipped."""

    def begun(candidate: Candidate) -> tuple[KernelSource, Compiled]:
        compiled: Compiled = Future()
        compiled.set_result(CompileFailure(Outcome.INTERRUPTED, "not compiled"))  # the result is not used
        return cast(KernelSource, None), compiled

    search = Search(strategy, is_skipped=lambda one: one.config not in of.told, most=most, gain=gain)
    pending, best_us = CompileQueue(search, begun, AHEAD), [inf]
    while not search.is_over and (one := pending.take()) is not None:
        told = of.told[one[0].config]
        us = inf if told.us is None else told.us
        search.tell(replace(told, is_right=told.is_right and us <= REACH * best_us[-1]))
        best_us.append(min(best_us[-1], us) if told.is_right else best_us[-1])
    return Replay(best_us[1:], search.why)


@dataclass(frozen=True, slots=True)
class Replay:
    """A replayed search."""

    best_us: Sequence[float]  # after each trial
    why: Why  # reason for the end

    def regret(self, of: Recorded, trials: int) -> float:
        """Return the regret after this many trials."""
        return self.best_us[min(trials, len(self.best_us)) - 1] / of.best_us - 1


def rows_of_space(row: Mapping[str, Any], known: Sequence[Measured]) -> tuple[list[Row], list[Ended]]:
    """Return the rows of all strategies for a recorded space. `known` contains the winners of all spaces."""
    of, rows, ended = space_of(row), list[Row](), list[Ended]()
    alike = (one for one in known if one.problem.dtype_name == of.problem.dtype_name)
    known = [one for one in alike if one.problem != of.problem]
    counts = [max(1, round(share * of.trials)) for share in SHARES]
    for name, make in strategies(of, known).items():
        several = [replayed(make(seed), of, most=counts[-1]) for seed in range(SEEDS.get(name, 1))]
        regrets = tuple(mean(one.regret(of, count) for one in several) for count in counts)
        rows.append(Row(name, of.problem.text, of.trials, regrets))
        if name in OF_GAIN:
            for gain in GAINS:
                found = replayed(make(0), of, gain=gain)
                trials = len(found.best_us)
                ended.append(Ended(name, of.problem.text, gain, trials / of.trials, found.regret(of, trials)))
    return rows, ended


def percent(value: float) -> str:
    """Return the percentage with one decimal, or "" if there is no correct kernel yet."""
    return "-" if value == inf else f"{100 * value:.1f}"


def table(rows: Sequence[Row]) -> str:
    """Return a Markdown table of each strategy's regret: mean and largest, and how many spaces have a small one."""
    lines = []
    for name in dict.fromkeys(row.strategy for row in rows):
        own = [row.regrets for row in rows if row.strategy == name]
        columns = list(zip(*own, strict=True))
        tenth = columns[SHARES.index(0.1)]
        means = [percent(mean(column)) for column in columns]
        lines.append((name, *means, percent(max(tenth)), f"{sum(one <= WITHIN for one in tenth)} of {len(own)}"))
    heads = ("strategy", *(f"{100 * share:g} %" for share in SHARES), "largest at 10 %", "at most 2 % at 10 %")
    return markdown(heads, lines, texts=("strategy",))


def by_space(rows: Sequence[Row]) -> str:
    """Return a Markdown table of each strategy's regret on each space after a tenth of the trials, in percent."""
    problems = list(dict.fromkeys((row.problem, row.trials) for row in rows))
    found = {(row.strategy, row.problem): percent(row.regrets[SHARES.index(0.1)]) for row in rows}
    names = list(dict.fromkeys(row.strategy for row in rows))
    lines = [(problem, str(trials), *(found[name, problem] for name in names)) for problem, trials in problems]
    return markdown(("space", "trials", *names), lines, texts=("space",))


def gains(ended: Sequence[Ended]) -> str:
    """Return a Markdown table for --gain: the trials until a search ended, and the regret, in percent."""
    lines = []
    for name in dict.fromkeys(one.strategy for one in ended):
        for gain in GAINS:
            own = [one for one in ended if (one.strategy, one.gain) == (name, gain)]
            kept = sum(one.missed < gain for one in own)
            shares, missed = mean(one.share for one in own), max(one.missed for one in own)
            lines.append((name, f"{100 * gain:g}", percent(shares), percent(missed), f"{kept} of {len(own)}"))
    heads = ("strategy", "--gain, %", "trials, % of the space", "missed at the most, %", "missed less than the gain")
    return markdown(heads, lines, texts=("strategy",))


def drawn(record: Mapping[str, Any]) -> dict[str, str]:
    """Return {name of a region: Markdown} for a record of replays."""
    rows = [Row(**row) for row in record["rows"]]
    ended = [Ended(**one) for one in record["ended"]]
    return {"regret": table(rows), "regret-by-space": by_space(rows), "gain": gains(ended)}


@click.command(cls=Command)
@click.option(
    "--db",
    default=None,
    type=click.Path(exists=True, dir_okay=False),
    help="Spaces that were tried whole, on GPUs: times of the host, which emulates kernels, say nothing of a search.",
)
@click.option("--spaces", default=FILE, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--processes", default=2, show_default=True, type=click.IntRange(1, 256))
@click.option("--output", default=None, type=click.Path(dir_okay=False, path_type=Path), help="JSON.")
def main(db: str | None, spaces: Path, processes: int, output: Path | None) -> None:
    """Replay every strategy on the spaces, and print the tables."""
    if output is not None:
        require_new(output)
    if db is None:
        every = read(spaces)["rows"]
    else:
        with Store.open(db, create=False) as store:
            every = list(rows_of(store))
        if not every:
            raise InputError(
                f"{db} has no trial of a GPU, and the host's times are of an emulation: name another --db"
            )
    for name in NAMED:
        strategy_named(name)  # raises for an unknown name before the replays
    known = [fastest(row) for row in every]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        found = []
        for row, part in zip(every, pool.map(rows_of_space, every, [known] * len(every)), strict=True):
            click.echo(f"{row['problem']}: replayed", err=True)
            found.append(part)
    rows, ended = ([one for of in part for one in of] for part in zip(*found, strict=True))
    record = {
        "command": "python -m benchmarks.regret",
        "devices": sorted({row["device"] for row in every}),
        "ahead": AHEAD,
        "shares": SHARES,
        **program_facts(),
        "rows": [asdict(row) for row in rows],
        "ended": [asdict(one) for one in ended],
    }
    if output is not None:
        write_json(output, record)
    click.echo("\n\n".join(drawn(record).values()))


if __name__ == "__main__":
    main()
