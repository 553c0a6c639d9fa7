"""The text of a card that the package brings, made of a database: its winners verified in full, then written.

    xz -dk benchmarks/results/h200-pack.db.xz
    python -m benchmarks.pretuned benchmarks/results/h200-pack.db --dtype f32,f64,c64 \\
        --output tsm2_tune/pretuned/h200.jsonl

The first part needs the card, and the compiler that the winners were made with; it goes on where the last call
stopped, also after a kill. `--no-verify` leaves it out: the text says then of each winner whether it was done.
"""

from __future__ import annotations

from collections.abc import Sequence

import click

import tsm2_tune
from tsm2_tune.errors import InputError
from tsm2_tune.options import texts
from tsm2_tune.tuner.target import find_target
from tsm2_tune.usage import Command


def verify(database: str, winners: Sequence[tsm2_tune.BestRow], device: str, *, pairs: bool) -> None:
    """Let runs on the device verify these winners, and with `pairs` the kernels for shapes between; no search is
    made, as the problems have trials. InputError where they are of another device.
    """
    target = find_target(device)
    if {row.device for row in winners} != {target.identity.name}:
        raise InputError(f"{database} is not of {target.identity.name} alone: run this where its winners were tuned")
    for cache in sorted({row.cache for row in winners}):
        problems = [row.problem for row in winners if row.cache == cache]
        tsm2_tune.tune(
            problems, db=database, device=target, cache=cache, max_trials=1, budget=1, pairs=pairs, on_event=print
        )


@click.command(cls=Command)
@click.argument("database", metavar="DATABASE")
@click.option("--dtype", default="f32,f64", show_default=True, help="Element types of the winners.")
@click.option("--device", default="0", show_default=True, help="The CUDA ordinal of the card.")
@click.option("--verify/--no-verify", "is_verified", default=True, help="Whether winners are verified before.")
@click.option("--pairs/--no-pairs", default=False, help="Whether kernels are measured at each other's shapes, too.")
@click.option("--output", required=True, metavar="FILE", help="The text.")
def main(database: str, dtype: str, device: str, is_verified: bool, pairs: bool, output: str) -> None:
    """Write the text of trials of DATABASE that the package brings."""
    if is_verified:
        verify(database, tsm2_tune.best(database, dtype=texts(dtype)), device, pairs=pairs)
    rows = tsm2_tune.best(database, dtype=texts(dtype))
    tsm2_tune.export(database, format="trials", dtype=texts(dtype), output=output)
    done = sum(row.verified_in_full for row in rows)
    click.echo(f"wrote {output}: {len(rows)} winners, {done} of them verified in full")


if __name__ == "__main__":
    main()
