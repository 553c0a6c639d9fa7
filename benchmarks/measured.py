"""Collect the measured problems from which a search derives its first choices, from the result files.

    python -m benchmarks.measured --output tsm2_tune/pretuned/first_choices.txt

It needs no GPU. The files are listed in FILES: the trials included in the package, and all files in
benchmarks/results that contain configurations with times. For each problem and GPU model, the fastest few kernels are
written, each with its fastest launch and with the first values of its late tunables (those that a search varies only
at its end). Configurations that this version cannot render are left out.
"""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from benchmarks.result_file import read, require_folder
from tsm2_tune.commands.errors import Command
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.families import family_named, parse_config
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.seed_table import Choice, Measured

ROOT = Path(__file__).parents[1]
MOST_KERNELS = 3  # limit of the kernels per problem

Timed = tuple[Problem, str, float | None]  # problem, text of a configuration, microseconds


def _problem(row: dict[str, Any]) -> Problem:
    return Problem(int(row["m"]), int(row["n"]), int(row["k"]), row["dtype"], row["op"])


def cells(path: Path) -> Iterator[Timed]:
    """Yield the measurements of a CSV file of cells, written by `cells_csv`."""
    with path.open(encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            yield _problem(row), row["configuration"], float(row["ours_us"])


def trials(path: Path) -> Iterator[Timed]:
    """Yield the last time with a clean L2 of each trial in a file of trials."""
    with path.open(encoding="utf-8") as lines:
        names = json.loads(next(lines))
        for kind, *values in map(json.loads, lines):
            if kind == "trial":
                trial = dict(zip(names["lines"]["trial"], values, strict=True))
                times = [dict(zip(names["times"], one, strict=True)) for one in trial["times"]]
                clean = [one["median_us"] for one in times if one["cache"] == "clean"]
                yield Problem.parse(trial["problem"]), trial["config"], clean[-1] if clean else None


def two_cards(path: Path) -> Iterator[Timed]:
    """Yield the lesser time of each configuration, from searches on two GPUs of the same model."""
    for row in read(path)["rows"]:
        yield Problem.parse(row["problem"]), row["config"], min(filter(None, row["us"]), default=None)


def general(path: Path) -> Iterator[Timed]:
    """Yield the first choices for matrices that are large in both directions."""
    for row in read(path)["rows"]:
        for text, us in row.get("choices_us", {}).items():
            yield _problem(row), text, us


def minplus(path: Path) -> Iterator[Timed]:
    """Yield the measurements of (min, +) products."""
    for row in read(path)["rows"]:
        if "configuration" in row:
            yield _problem(row), row["configuration"], row["us"]


def gemv(path: Path) -> Iterator[Timed]:
    """Yield the fastest configuration of each decomposition of a matrix-vector product."""
    for row in read(path)["rows"]:
        for one in row["decompositions"].values():
            yield _problem(row | {"n": 1}), one["configuration"], one["ours_us"]


def unseen(path: Path) -> Iterator[Timed]:
    """Yield the winners of searches for shapes that the exported module was not tuned for."""
    for row in read(path)["rows"]:
        if row.get("search_configuration"):
            yield _problem(row), row["search_configuration"], row["search_us"]


def tuned(path: Path) -> Iterator[Timed]:
    """Yield the measurements of a program's products."""
    for row in json.loads(path.read_text(encoding="utf-8"))["best"]:
        yield _problem(row), row["config"], row["median_us"]


def tried(path: Path) -> Iterator[Timed]:
    """Yield the measurements of first choices, from a file of timed first choices."""
    for row in read(path)["rows"]:
        yield Problem.parse(row["problem"]), row["configuration"], row["measured_us"]


def headline(path: Path) -> Iterator[Timed]:
    """Yield the measurements of the headline shapes."""
    for row in read(path)["rows"]:
        yield _problem(row), row["configuration"], row["ours_us"]


FILES: tuple[tuple[str, str, Callable[[Path], Iterator[Timed]]], ...] = (
    ("h200", "tsm2_tune/pretuned/h200.jsonl", trials),
    ("h200", "benchmarks/results/h200-versus-cublas.csv", cells),
    ("h200", "benchmarks/results/h200-two-cards.json", two_cards),
    ("h200", "benchmarks/results/h200-general.json", general),
    ("h200", "benchmarks/results/h200-minplus.json", minplus),
    ("h200", "benchmarks/results/h200-gemv.json", gemv),
    ("h200", "benchmarks/results/h200-tf32.jsonl", trials),
    ("h100", "tsm2_tune/pretuned/h100.jsonl", trials),
    ("h100", "benchmarks/results/h100-tuned.json", tuned),
    ("h100", "benchmarks/results/h100-headline.json", headline),
    ("h100", "benchmarks/results/h100-unseen.json", unseen),
    ("h100", "benchmarks/results/h100-unseen-4.json", unseen),
    ("h100", "benchmarks/results/h100-first-choices.json", tried),
    ("h100", "benchmarks/results/h100-first-choices-later.json", tried),
)

Recorded = dict[tuple[str, Problem], dict[KernelConfig, float]]


def recorded() -> Recorded:
    """Return {(card, problem): {configuration: least microseconds}} of single products.

    Late tunables have their first values.
    """
    found: Recorded = defaultdict(dict)
    for card, name, timed in FILES:
        for problem, text, us in timed(ROOT / name):
            config = parse_config(text)
            if config and us and not problem.is_batched and family_named(config.family).supports(problem):
                times = found[card, problem]
                times[config.early] = min(us, times.get(config.early, us))
    return found


def fastest(times: dict[KernelConfig, float]) -> tuple[Choice, ...]:
    """Return up to MOST_KERNELS kernels, fastest first, each in its fastest configuration."""
    kernels: dict[str, Choice] = {}
    for config in sorted(times, key=lambda config: (times[config], config.text)):
        kernels.setdefault(config.kernel_text, Choice(config, times[config]))
    return tuple(kernels.values())[:MOST_KERNELS]


@click.command(cls=Command)
@click.option("--output", required=True, type=click.Path(dir_okay=False, path_type=Path))
def main(output: Path) -> None:
    """Write each measured problem with its fastest kernels."""
    require_folder(output)
    rows = [Measured(PROFILES[card], problem, fastest(times)) for (card, problem), times in recorded().items()]
    rows.sort(key=lambda one: (one.problem.dtype_name, one.problem.op, one.problem, one.limits.name))
    head = (
        "# Made by python -m benchmarks.measured: the card, the problem, and its fastest kernels with microseconds.\n"
    )
    output.write_text(head + "".join(f"{one.line}\n" for one in rows), encoding="utf-8")
    click.echo(f"wrote {output}: {len(rows)} problems")


if __name__ == "__main__":
    main()
