"""Compare the times of the same trials in two databases, from two runs or two GPUs.

    python -m benchmarks.repeated first.db second.db --output repeated.json

For each configuration of each problem, the first measurement in the same L2 state on devices of the same name is
compared. Winners are compared if both databases contain a final of the problem.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.result_file import require_new
from benchmarks.tables import markdown
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


@click.command(cls=Command)
@click.argument("first", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("second", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--output", default=None, type=click.Path(dir_okay=False, path_type=Path), help="For the pairs.")
def main(first: Path, second: Path, output: Path | None) -> None:
    """Print how well the times of the second database repeat those of the first."""
    if output is not None:
        require_new(output)
    with Store.open(first, create=False) as one, Store.open(second, create=False) as other:
        found = compared(one, other)
    if output is not None:
        output.write_text(json.dumps(found, separators=(",", ":")) + "\n")
    click.echo(table(found))


if __name__ == "__main__":
    main()
