"""Compare the trials per second of one GPU with those of several GPUs together, on the same problems.

    python -m benchmarks.fleet_rate --output rates.json

Each turn starts with an empty database, and with the cache of compiled kernels from the previous turn. The first turn
only fills the cache and is not counted: so compilation takes as little time with one GPU as with all.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

import click

import tsm2_tune
from tsm2_tune.commands.errors import Command
from tsm2_tune.tuner.device.cuda import cuda_device_count
from tsm2_tune.tuner.runs.events import Event, OfRun, TrialInterrupted, TrialStored

SHAPES = "20480x2/4/8/16/32x20480,1e6x8/16x8/16,8/16x8/16x1e6"


class Rate:
    """A counter of trials per second, from the first trial on."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.runs: set[str] = set()

    def hear(self, event: Event) -> None:
        """Count the event if it is a trial."""
        if isinstance(event, OfRun):
            self.runs.add(event.run)
            event = event.event
        if isinstance(event, TrialStored | TrialInterrupted):
            self.times.append(time.monotonic())

    @property
    def per_second(self) -> float:
        """Trials per second between the first and the last trial."""
        return (len(self.times) - 1) / (self.times[-1] - self.times[0])


@click.command(cls=Command)
@click.option("--shapes", default=SHAPES, show_default=True, help="As tsm2-tune takes them.")
@click.option("--max-trials", default=100, show_default=True, help="For each problem.")
@click.option("--output", type=click.Path(dir_okay=False), required=True, help="JSON.")
def main(shapes: str, max_trials: int, output: str) -> None:
    """Tune on GPU 0, then on all GPUs."""
    turns = []
    for device in ("all", "0", "all"):
        rate = Rate()
        with tempfile.TemporaryDirectory() as folder:
            tsm2_tune.tune(
                shapes, device=device, db=Path(folder, "results.db"), budget=None, max_trials=max_trials, pairs=False,
                on_event=rate.hear,
            )  # fmt: skip
        gpus = 1 if device == "0" else cuda_device_count()
        turns.append({"gpus": gpus, "trials": len(rate.times), "trials_per_second": round(rate.per_second, 2)})
        click.echo(turns[-1])
    _, one, every = turns
    gain = every["trials_per_second"] / one["trials_per_second"]
    Path(output).write_text(json.dumps({"shapes": shapes, "one": one, "all": every, "gain": round(gain, 3)}) + "\n")
    click.echo(f"{every['gpus']} GPUs make {gain:.2f} times the trials of one")


if __name__ == "__main__":
    main()
