"""Compare the trials per second of one GPU with those of several GPUs together, on the same problems.

    python -m benchmarks.fleet_rate --output rates.json

Each turn starts with an empty database, and with the cache of compiled kernels from the previous turns. The first
turn only fills the cache and is not counted. Then one GPU and all GPUs take turns, so that both have about the same
cache.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import mean

import click

import tsm2_tune
from benchmarks.result_file import device_facts, write_json
from tsm2_tune.commands.errors import Command
from tsm2_tune.errors import InputError
from tsm2_tune.tuner.device.cuda import cuda_device_count
from tsm2_tune.tuner.device.target import find_target
from tsm2_tune.tuner.runs.events import Event, OfRun, TrialInterrupted, TrialStored

PAIRS = 2  # of turns that are counted
SHAPES = "20480x2/4/8/16/32x20480,1e6x8/16x8/16,8/16x8/16x1e6"


class Rate:
    """A counter of trials per second, from the first trial on."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def hear(self, event: Event) -> None:
        """Count the event if it is a trial."""
        event = event.event if isinstance(event, OfRun) else event
        if isinstance(event, TrialStored | TrialInterrupted):
            self.times.append(time.monotonic())

    @property
    def per_second(self) -> float:
        """Trials per second between the first and the last trial."""
        return (len(self.times) - 1) / (self.times[-1] - self.times[0])


@click.command(cls=Command)
@click.option("--shapes", default=SHAPES, show_default=True, help="As tsm2-tune takes them.")
@click.option("--max-trials", type=click.IntRange(2), default=100, show_default=True, help="For each problem.")
@click.option("--output", type=click.Path(dir_okay=False), required=True, help="JSON.")
def main(shapes: str, max_trials: int, output: str) -> None:
    """Tune on all GPUs, then in turns on GPU 0 and on all."""
    if cuda_device_count() < 2:
        raise InputError("this machine has no two GPUs: run this where several are")
    turns = []
    for device in ("all", *PAIRS * ("0", "all")):
        rate = Rate()
        with tempfile.TemporaryDirectory() as folder:
            tsm2_tune.tune(
                shapes, device=device, db=Path(folder, "results.db"), budget=None, max_trials=max_trials, pairs=False,
                on_event=rate.hear,
            )  # fmt: skip
        gpus = 1 if device == "0" else cuda_device_count()
        turns.append({"gpus": gpus, "trials": len(rate.times), "trials_per_second": round(rate.per_second, 2)})
        click.echo(turns[-1])
    one, every = (mean(turn["trials_per_second"] for turn in turns[first::2]) for first in (1, 2))
    facts = device_facts(f"python -m benchmarks.fleet_rate --max-trials {max_trials}", find_target("0"))
    found = {"shapes": shapes, "max_trials": max_trials, "turns": turns, "gain": round(every / one, 3)}
    write_json(Path(output), facts | found)
    click.echo(f"{turns[0]['gpus']} GPUs make {every / one:.2f} times the trials of one")


if __name__ == "__main__":
    main()
