"""Measure how many configurations per second a search tries, including verification.

    python -m benchmarks.trial_rate --output benchmarks/results/h100-trial-rate.json

Each problem is searched twice: with every trial in full, and with trials that end early if the kernel is too slow to
win. Each of these searches starts with an empty cache of compiled kernels, and is repeated with the cache that it
filled. Every search has an empty database. A repeated search is faster, so it also reaches kernels that are not
compiled yet.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import click

import tsm2_tune
from benchmarks.result_file import device_facts, write_json
from tsm2_tune.commands.errors import Command
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.device.target import find_target
from tsm2_tune.tuner.runs.events import Event, RunStarted, TrialStored
from tsm2_tune.tuner.search.phase_timer import PhaseTimer

PROBLEMS = ("4096x8x4096:f32", "10000000x8x8:f32", "8x8x10000000:f64:tn")
CACHE = "XDG_CACHE_HOME"  # variable that names the folder of cached kernels


def searched(problem: Problem, device: str, seconds: float, *, full: bool) -> dict[str, Any]:
    """Return the trials, the time spent and the winner of a search of this many seconds."""
    outcomes, texts, compiled = Counter[str](), set[str](), set[str]()
    clocks: list[PhaseTimer] = []

    def told(event: Event) -> None:
        if isinstance(event, RunStarted):
            clocks.append(event.phases)
        elif isinstance(event, TrialStored):
            outcomes[event.trial.outcome.value] += 1
            texts.add(event.trial.source.digest)
            if event.trial.compile_seconds:
                compiled.add(event.trial.source.digest)

    with tempfile.TemporaryDirectory() as folder:
        result = tsm2_tune.tune(
            problem, device=device, db=Path(folder) / "results.db", budget=seconds, full_trials=full, vendor=False,
            pairs=False, on_event=told,
        )  # fmt: skip
    winner = result.winners[0]
    return {
        "trials": outcomes.total(),
        "outcomes": dict(outcomes),
        "texts": len(texts),
        "compiled": len(compiled),
        "per_second": outcomes.total() / seconds,
        "phases": clocks[0].taken(),
        "winner": winner.config,
        "median_us": winner.median_us,
    }


def rows_of(text: str, device: str, seconds: float, *, in_full: bool, times: int) -> list[dict[str, Any]]:
    """Return the rows of one problem's searches: trials that end early and, if `in_full`, also full trials."""
    rows = []
    for full in (True, False) if in_full else (False,):
        with tempfile.TemporaryDirectory() as cache:
            os.environ[CACHE] = cache
            for kernels in ("none compiled", *["compiled"] * (times - 1)):
                row = searched(Problem.parse(text), device, seconds, full=full)
                rows.append({"problem": text, "seconds": seconds, "in_full": full, "kernels": kernels} | row)
                click.echo(
                    f"{text} {'in full' if full else 'ending early'}, {kernels}: {row['per_second']:.1f} a second,"
                    f" {row['outcomes']}, {row['texts']} texts, {row['compiled']} compiled;"
                    f" {row['winner']} {row['median_us']:.1f} us"
                )
    return rows


@click.command(cls=Command)
@click.option("--device", default="0", show_default=True, help="CUDA ordinal, or cpu.")
@click.option("--problems", default=",".join(PROBLEMS), show_default=True, help="Separated by commas.")
@click.option("--seconds", type=float, default=20.0, show_default=True, help="For each search.")
@click.option("--in-full/--no-in-full", default=True, show_default=True, help="Also with every trial in full.")
@click.option("--times", type=click.IntRange(1), default=2, show_default=True, help="Searches by one cache.")
@click.option("--output", required=True, type=click.Path(dir_okay=False, path_type=Path))
def main(device: str, problems: str, seconds: float, in_full: bool, times: int, output: Path) -> None:
    """Measure the configurations per second of searches."""
    rows = [
        row for text in problems.split(",") for row in rows_of(text, device, seconds, in_full=in_full, times=times)
    ]
    write_json(output, {**device_facts("python -m benchmarks.trial_rate", find_target(device)), "rows": rows})


if __name__ == "__main__":
    main()
