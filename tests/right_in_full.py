"""The full verification refuses no right kernel: one of each family, dtype and way through its templates.

    python -m tests.right_in_full --device 0 --part 1/4

On the host that is half an hour of one core, on an H200 some seconds a kernel. Each part is a process of its own:
run as many beside one another as there are cores.
"""

from __future__ import annotations

import time
from dataclasses import replace

import click

from benchmarks.versus_cublas import part_of
from tests.mutation.command import named
from tests.mutation.subjects import subjects
from tests.planted_bugs import bench_on, rejection
from tests.planting import Bug
from tsm2_tune.commands.errors import Command
from tsm2_tune.tuner.device.target import find_target
from tsm2_tune.tuner.verify.winner_calls import EMULATED, ON_GPU


@click.command(cls=Command)
@click.option("--device", default="cpu", show_default=True, help="A CUDA ordinal, or cpu.")
@click.option("--part", default="1/1", show_default=True, help="Such as 2/8: every eighth, from the second on.")
@click.option("--families", help="Of these alone, such as gemv,ladder.")
def main(device: str, part: str, families: str | None) -> None:
    """Say what is refused; exit code 1 where anything is."""
    first, step = part_of(part)
    bench = replace(bench_on(device), coverage=EMULATED if find_target(device).is_host else ON_GPU)
    found = [subject for of_place in subjects(named(families)).values() for subject in of_place][first - 1 :: step]
    refused = 0
    for one in found:
        no_bug, start = Bug(one.name, one.config, one.problem, "at the start", "", ""), time.monotonic()
        try:
            by, detail = rejection(no_bug, bench, is_whole=True) or ("", "right")
        except AssertionError as error:
            by, detail = "not tried", str(error)
        refused += bool(by)
        click.echo(f"{one.name}, {time.monotonic() - start:.1f} s: {f'REFUSED: {by}: ' if by else ''}{detail}")
    bench.worker.close()
    click.echo(f"{len(found)} kernels, {refused} refused")
    raise SystemExit(1 if refused else 0)


if __name__ == "__main__":
    main()
