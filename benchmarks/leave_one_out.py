"""Check that first choices, which come from measured problems, are also fast for problems that were not measured.

    python -m benchmarks.leave_one_out record --output before.jsonl.xz       # with the version before
    python -m benchmarks.leave_one_out compare before.jsonl.xz --pairs pairs.txt
    python -m benchmarks.leave_one_out run pairs.txt --device 0 --output run.json
    python -m benchmarks.leave_one_out compare before.jsonl.xz --run run.json

`record` and `compare` need no GPU. The cells are those of benchmarks/results/h200-versus-cublas.csv. `record` writes
the configurations that a search for each cell tries first. `compare` computes the first five choices without the
measurements of the cell and of products with the same shape and storage. It prints for how many cells these five
contain the fastest known configuration, or one within 1 % of it, with the recorded version and with this one. For
other cells, it prints the expected loss of the best of the five. `--pairs` writes the choices without a known time,
for a sample of the cells; `run` times them on a GPU; `--run` adds these times to the known ones.
"""

from __future__ import annotations

import json
import lzma
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import chain, groupby, zip_longest
from math import exp, log
from multiprocessing import get_context
from pathlib import Path

import click

from benchmarks.headline import markdown
from benchmarks.measured import ROOT, cells, recorded
from benchmarks.result_file import read_json, require_new
from benchmarks.timed_pairs import time_pairs
from tsm2_tune.commands.errors import Command, Group
from tsm2_tune.errors import InputError
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.families import FAMILIES, family_named, parse_config
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.generator.space.guidelines import Guidelines
from tsm2_tune.generator.space.order import ordered
from tsm2_tune.generator.space.seeds import first_choices, packaged
from tsm2_tune.generator.space.space import guidelines_in_force, rules_of, search_space
from tsm2_tune.tuner.compile.pool import cores
from tsm2_tune.tuner.packs.candidate_times import candidate_times_us

CELLS = ROOT / "benchmarks/results/h200-versus-cublas.csv"
FIRST = 5  # number of first choices
WITHIN = 1.01  # a choice is a hit if its time is at most this factor times the fastest known
LIMITS = PROFILES["h200"]

Choices = tuple[KernelConfig, ...]
Times = Mapping[KernelConfig, float]


def problems() -> list[Problem]:
    """Return the cells' problems, in order."""
    return sorted({problem for problem, _, _ in cells(CELLS)})


def tried_first(problem: Problem) -> Choices:
    """Return the configurations that a search for the problem tries first, with all measurements."""
    return tuple(
        candidate.config for candidate in ordered(search_space(problem, LIMITS), 0, candidate_times_us)[:FIRST]
    )


def left_out(problem: Problem) -> Choices:
    """Return the first choices for the problem from the measurements of other problems."""
    families = [family for family in FAMILIES.values() if not family.only_by_name]
    found = first_choices(families, problem, LIMITS, candidate_times_us, packaged(problem, LIMITS, without=problem))
    return tuple(config for config in found if _in_space(config, problem))[:FIRST]


def _in_space(config: KernelConfig, problem: Problem) -> bool:
    family = family_named(config.family)
    guidelines = guidelines_in_force(family, problem, LIMITS, {})
    candidate = Candidate(family, config, problem, LIMITS, guidelines)
    return family.has(config, problem) and all(rule.keeps(candidate) for rule in rules_of(family))


def known_times() -> dict[Problem, dict[KernelConfig, float]]:
    """Return {problem: {configuration: microseconds}} of the configurations timed on an H200."""
    return {problem: times for (card, problem), times in recorded().items() if card == "h200"}


def regime(problem: Problem) -> str:
    """Return the problem's regime: R, L or T, or G for X^T X."""
    if problem.is_gram:
        return "G"
    if problem.k >= 100 * max(problem.m, problem.n):
        return "T"
    return "L" if problem.k <= 64 else "R"


def times_in(path: Path) -> dict[Problem, dict[KernelConfig, float]]:
    """Return {problem: {configuration: microseconds}} from a file of `run`, for cells that were timed completely."""
    found: dict[Problem, dict[KernelConfig, float]] = defaultdict(dict)
    for row in read_json(path)["rows"]:
        config = parse_config(row["configuration"])
        if config is not None and row["measured_us"]:
            found[Problem.parse(row["problem"])][config.early] = row["measured_us"]
    return dict(found)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The rating of the first choices for a problem."""

    problem: Problem
    is_hit: bool  # whether a choice took at most WITHIN times the fastest known time
    times: float  # time of the fastest choice over the fastest known; 0 if no choice was timed
    expected: float  # least expected time of the choices, over that of the fastest known configuration


def outcome(problem: Problem, choices: Sequence[KernelConfig], times: Times) -> Outcome:
    """Return the rating of the first choices for a problem, from known times."""
    least = min(times.values())
    known = [times[config.early] for config in choices if config.early in times]
    best = min(known, default=0.0) / least
    fastest = min(times, key=times.__getitem__)
    candidates = (
        Candidate(family_named(config.family), config, problem, LIMITS, Guidelines())
        for config in (fastest, *choices)
    )
    fastest_us, *choices_us = candidate_times_us(list(candidates)).tolist()
    return Outcome(problem, 0 < best <= WITHIN, best, min(choices_us, default=float("inf")) / fastest_us)


def mean(values: Sequence[float]) -> float:
    """Return the geometric mean."""
    return exp(sum(map(log, values)) / len(values)) if values else float("nan")


def table(before: Mapping[Problem, Outcome], now: Mapping[Problem, Outcome]) -> str:
    """Return a Markdown table by element type and regime, before and now.

    Its columns are the cells with a fast first choice, the time of the best first choice over the fastest known, and
    the expected loss of the other cells.
    """
    groups: dict[str, list[Problem]] = defaultdict(list)
    for problem in before:
        groups[f"{problem.dtype_name} {regime(problem)}"].append(problem)
    groups = dict(sorted(groups.items())) | {"all": list(before)}
    lines = [(name, str(len(of)), *_cells(before, of), *_cells(now, of)) for name, of in groups.items()]
    columns = ("hits", "times the fastest", "rest, expected")
    heads = ("", "cells", *(f"before: {one}" for one in columns), *(f"now: {one}" for one in columns))
    return markdown(heads, lines, texts=("",))


def _cells(outcomes: Mapping[Problem, Outcome], of: Sequence[Problem]) -> tuple[str, ...]:
    found = [outcomes[problem] for problem in of]
    known, rest = [one.times for one in found if one.times], [one.expected for one in found if not one.is_hit]
    return f"{sum(one.is_hit for one in found)}", f"{mean(known):.3f} of {len(known)}", f"{mean(rest):.2f}"


def pairs_to_time(
    lists: Sequence[Mapping[Problem, Choices]], times: Mapping[Problem, Times], most: int
) -> Iterator[tuple[Problem, Choices]]:
    """Yield problems and configurations to time on a GPU: at most `most` pairs, from random cells.

    Element types and regimes alternate. For each problem, the configurations are the choices of all lists and the
    fastest known one, in random order.
    """
    groups: dict[str, list[Problem]] = defaultdict(list)
    for problem in sorted(lists[0]):
        groups[f"{problem.dtype_name} {regime(problem)}"].append(problem)
    for of in groups.values():
        random.Random(0).shuffle(of)
    count = 0
    for problem in filter(None, chain.from_iterable(zip_longest(*groups.values()))):
        fastest = min(times[problem], key=times[problem].__getitem__)
        chosen = {config for choices in lists for config in choices[problem]}
        every = sorted(chosen | {fastest}, key=lambda config: config.text)
        random.Random(0).shuffle(every)
        count += len(every)
        if count > most:
            return
        yield problem, tuple(every)


def read_choices(path: Path) -> dict[Problem, Choices]:
    """Read a file that `record` wrote. Raise InputError for any other file."""
    try:
        with lzma.open(path, "rt", encoding="utf-8") as lines:
            rows = list(map(json.loads, lines))
        return {Problem.parse(text): tuple(filter(None, map(parse_config, spelt))) for text, spelt in rows}
    except (OSError, EOFError, ValueError, TypeError, lzma.LZMAError) as error:
        raise InputError(f"{path} has no recorded choices ({error}): name a file of record") from None


def of_each(chosen: Callable[[Problem], Choices], of: Iterable[Problem]) -> dict[Problem, Choices]:
    """Return the choices for each problem, computed in parallel."""
    every = list(of)
    with ProcessPoolExecutor(cores(), mp_context=get_context("spawn")) as pool:
        return dict(zip(every, pool.map(chosen, every, chunksize=8), strict=True))


@click.group(cls=Group)
def main() -> None:
    """Check whether first choices are fast for problems that were not measured."""


@main.command(cls=Command)
@click.option("--output", required=True, type=click.Path(dir_okay=False, path_type=Path), help="Ending in .jsonl.xz.")
def record(output: Path) -> None:
    """Write the configurations that a search tries first, for each cell."""
    require_new(output, "name another --output")
    found = of_each(tried_first, problems())
    with lzma.open(output, "wt", encoding="utf-8") as lines:
        for problem, choices in found.items():
            lines.write(json.dumps([problem.text, [config.text for config in choices]]) + "\n")
    click.echo(f"wrote {output}: {len(found)} cells")


@main.command(cls=Command)
@click.argument("before", metavar="BEFORE", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--run", "timed", default=None, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--pairs", default=None, type=click.Path(dir_okay=False, path_type=Path), help="List what to time on a GPU."
)
@click.option("--most", default=4000, show_default=True, help="Pairs of the list, at the most.")
def compare(before: Path, timed: Path | None, pairs: Path | None, most: int) -> None:
    """Print how often the fastest configuration is among the first five choices, before and now."""
    start = time.monotonic()
    times = known_times()
    then = {problem: choices for problem, choices in read_choices(before).items() if problem in times}
    now = of_each(left_out, then)
    seconds = time.monotonic() - start
    if timed is not None:
        times = times_in(timed)
        then = {problem: choices for problem, choices in then.items() if problem in times}
    outcomes = [{one: outcome(one, choices[one], times[one]) for one in then} for choices in (then, now)]
    click.echo(f"{len(then)} cells, first choices of now in {seconds:.0f} s\n\n{table(*outcomes)}")
    if pairs is not None:
        found = list(pairs_to_time((then, now), times, most))
        lines = [f"{problem.text} {config.text}\n" for problem, configs in found for config in configs]
        pairs.write_text("".join(lines), encoding="utf-8")
        click.echo(f"\nwrote {pairs}: {len(lines)} pairs of {len(found)} cells")


@main.command(cls=Command)
@click.argument("pairs", metavar="PAIRS", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--device", default="0", show_default=True, help="The ordinal of the card.")
@click.option("--output", required=True, type=click.Path(dir_okay=False, path_type=Path))
@click.option("--time-limit", type=click.FloatRange(0, min_open=True), default=None, help="Seconds.")
def run(pairs: Path, device: str, output: Path, time_limit: float | None) -> None:
    """Compile, verify and time the listed configurations on the device."""
    lines = [line.split() for line in pairs.read_text(encoding="utf-8").splitlines()]
    listed: list[tuple[Problem, Choices]] = []
    for text, of in groupby(lines, key=lambda line: line[0]):
        listed.append((Problem.parse(text), tuple(filter(None, (parse_config(spelt) for _, spelt in of)))))
    time_pairs(listed, device, output, time_limit=time_limit)


if __name__ == "__main__":
    main()
