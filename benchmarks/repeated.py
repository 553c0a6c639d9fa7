"""Compare the times of the same trials in two databases, from two runs or two GPUs.

    python -m benchmarks.repeated first.db second.db --output repeated.json
    python -m benchmarks.repeated --table repeated.json

For each configuration of each problem, the first measurement in the same L2 state on devices of the same name is
compared. Winners are compared if both databases contain a final of the problem.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.headline import markdown
from benchmarks.result_file import is_number, require_new
from tsm2_tune.commands.errors import Command
from tsm2_tune.errors import InputError
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Outcome, TuningRun

CLASSES = ((0.0, 10.0), (10.0, 100.0), (100.0, float("inf")))  # ranges of microseconds: rows of the table
WITHIN = (0.01, 0.02, 0.05)
Key = tuple[str, ...]
Times = dict[Key, float]


def trials_of(store: Store) -> Times:
    """Return {(device, problem, configuration, L2 state): median microseconds of the first measurement}."""
    lines = (line for line in store.listing() if line.outcome == Outcome.OK.value and line.median_us is not None)
    return {(line.device, line.problem, line.config, line.cache): line.median_us or 0.0 for line in lines}


def winners_of(store: Store) -> dict[Key, tuple[str, float]]:
    """Return {(device, problem, L2 state): (winner of the last final, its median microseconds)}."""
    rows = (row for row in store.best() if row.round > 0)
    return {(row.device, row.problem.text, row.cache): (row.config, row.median_us) for row in rows}


def facts_of(runs: Sequence[TuningRun]) -> dict[str, Any]:
    """Return the devices and versions of both databases, and whether both GPUs have the same UUID."""
    return {
        "devices": [run.identity.name for run in runs],
        "drivers": [run.identity.driver for run in runs],
        "toolkits": [run.identity.toolkit for run in runs],
        "started_at": [run.started_at for run in runs],
        "one_card": len({run.identity.uuid for run in runs}) == 1,
    }


def compared(first: Store, second: Store) -> dict[str, Any]:
    """Return the trials and winners that both databases contain. Raise InputError if there is no such trial."""
    trials = [trials_of(store) for store in (first, second)]
    winners = [winners_of(store) for store in (first, second)]
    both = [key for key in trials[0] if key in trials[1]]
    if not both:
        raise InputError(
            f"{first.path} and {second.path} have no trial in common: name two runs of the same problems"
        )
    rows = [{"problem": key[1], "config": key[2], "us": [of[key] for of in trials]} for key in both]
    won = [
        {"problem": key[1], "configs": [of[key][0] for of in winners], "us": [of[key][1] for of in winners]}
        for key in winners[0]
        if key in winners[1]
    ]
    return {**facts_of([store.newest_run(both[0][0]) for store in (first, second)]), "rows": rows, "winners": won}


def line_of(name: str, pairs: Iterable[Sequence[float]]) -> list[str]:
    """Return a line of the table. The ratio is the second time divided by the first."""
    ratios = np.array([second / first for first, second in pairs])
    if not len(ratios):
        return [name, "0", *[""] * (3 + len(WITHIN))]
    low, middle, high = np.quantile(ratios, (0.05, 0.5, 0.95))
    shares = (np.mean(np.maximum(ratios, 1 / ratios) <= 1 + within) for within in WITHIN)
    return [name, str(len(ratios)), *(f"{x:.3f}" for x in (low, middle, high)), *(f"{100 * x:.1f} %" for x in shares)]


def table(found: dict[str, Any]) -> str:
    """Return a Markdown table: trials grouped by time, then winners."""
    rows, won = found["rows"], found["winners"]
    lines = []
    for low, high in CLASSES:
        name = (
            f"under {high:g} us" if low == 0 else f"{low:g} us and more" if high > 1e9 else f"{low:g} to {high:g} us"
        )
        lines.append(line_of(f"trials, {name}", (row["us"] for row in rows if low <= row["us"][0] < high)))
    lines += [line_of("all trials", (row["us"] for row in rows)), line_of("winners", (row["us"] for row in won))]
    heads = ("", "pairs", "5 %", "median", "95 %", *(f"within {100 * within:g} %" for within in WITHIN))
    same = sum(len(set(row["configs"])) == 1 for row in won)
    cards = "one card" if found["one_card"] else "two cards"
    about = f"{' and '.join(dict.fromkeys(found['devices']))}, {cards}: {same} of {len(won)} winners are the same."
    return f"{about}\n\n{markdown(heads, lines, heads[:1])}"


def read_repeated(path: Path) -> dict[str, Any]:
    """Return the content of a file of an earlier call. Raise InputError for another file."""
    try:
        found = json.loads(path.read_text())
        rows, won, devices = found["rows"], found["winners"], found["devices"]
        configs, us = [row["configs"] for row in won], [row["us"] for row in (*rows, *won)]
        are_lists = all(isinstance(one, list) for one in (rows, won, devices, *configs, *us))
        are_texts = all(isinstance(text, str) for one in (devices, *configs) for text in one)
        are_pairs = {len(one) for one in (*configs, *us)} <= {2} and all(map(is_number, chain(*us)))
        if not (are_lists and are_texts and are_pairs and type(found["one_card"]) is bool):
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise InputError(f"{path} is no file of benchmarks.repeated: name one that it wrote") from None
    return dict(found)


@click.command(cls=Command)
@click.argument("databases", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--output", default=None, type=click.Path(dir_okay=False, path_type=Path), help="Write the pairs there."
)
@click.option(
    "--table",
    "to_show",
    default=None,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Print the table of a file.",
)
def main(databases: tuple[Path, ...], output: Path | None, to_show: Path | None) -> None:
    """Print how well one database's times repeat those of another."""
    if len(databases) != (2 if to_show is None else 0):
        raise InputError("expected two databases, or --table and a file")
    if to_show is not None:
        click.echo(table(read_repeated(to_show)))
        return
    if output is not None:
        require_new(output, "name another --output")
    with Store.open(databases[0], create=False) as first, Store.open(databases[1], create=False) as second:
        found = compared(first, second)
    if output is not None:
        try:
            output.write_text(json.dumps(found, separators=(",", ":")) + "\n")
        except OSError as error:
            raise InputError(f"{output} cannot be written ({error.strerror}): name another --output") from None
    click.echo(table(found))


if __name__ == "__main__":
    main()
