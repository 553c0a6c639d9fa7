"""Write the trials of a GPU model that the package includes, from a database: verify its winners, then export.

    tsm2-tune import tsm2_tune/pretuned/h200.jsonl --db h200.db
    python -m benchmarks.pretuned h200.db --dtype f32,f64,c64 --output tsm2_tune/pretuned/h200.jsonl

The verification needs the GPU, and the compiler with which the winners were tuned. An interrupted verification
continues with the same command. `--no-verify` skips it; the file states for each winner whether it was fully
verified. `tsm2-tune --max-trials 1` on the tuned shapes, with the L2 state of their trials (`--cache`), searches
nothing and times their kernels at other shapes, on several GPUs too. That makes predictions more exact.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import click

import tsm2_tune
from tsm2_tune.commands.errors import Command
from tsm2_tune.errors import InputError
from tsm2_tune.tuner.device.lock import device_lock
from tsm2_tune.tuner.device.target import Target, find_target
from tsm2_tune.tuner.export.kernel_sets.intermediate_winners import rows_between
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.search.loop import Tuner
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.session import verified


def verify(database: str, dtypes: Sequence[str], device: str) -> None:
    """Fully verify the winners of these types, and the kernels that an export adds for shapes between.

    Raise InputError if a winner belongs to another device. If a winner is wrong, the next best configuration replaces
    it and is verified. Verification in parallel would take as long, because the GPU limits it.
    """
    target, done = find_target(device), set[int]()
    with device_lock(target), Tuner(target, Options()) as tuner, Store.open(Path(database), create=False) as store:
        while rows := [row for row in unverified(store, dtypes, target) if row.trial_id not in done]:
            for number, row in enumerate(rows, 1):
                since = time.monotonic()
                event = verified(row, tuner, store)
                done.add(row.trial_id)
                seconds = time.monotonic() - since
                click.echo(f"{number}/{len(rows)} {seconds:.1f} s {row.problem.text} {event or 'known'}")


def unverified(store: Store, dtypes: Sequence[str], target: Target) -> list[tsm2_tune.BestRow]:
    """Return the rows without full verification. Raise InputError if a winner belongs to another device."""
    every = store.best()
    if {row.device for row in every} != {target.identity.name}:
        raise InputError(f"it is not of {target.identity.name} alone: run this where its winners were tuned")
    winners = [row for row in every if row.dtype in dtypes and not row.stale]
    rows = [*winners, *rows_between(store, winners)]
    return [row for row in rows if not row.verified_in_full]


@click.command(cls=Command)
@click.argument("database", metavar="DATABASE")
@click.option("--dtype", default="f32,f64", show_default=True, help="Element types of the winners.")
@click.option("--device", default="0", show_default=True, help="The CUDA ordinal of the card.")
@click.option("--verify/--no-verify", "is_verified", default=True, help="Whether winners are verified before.")
@click.option("--output", required=True, metavar="FILE", help="The text.")
def main(database: str, dtype: str, device: str, is_verified: bool, output: str) -> None:
    """Write the file of trials that the package includes, from DATABASE."""
    dtypes = [one.strip() for one in dtype.split(",")]
    if is_verified:
        verify(database, dtypes, device)
    rows = tsm2_tune.best(database, dtype=dtypes)
    tsm2_tune.export(database, format="trials", dtype=dtypes, output=output)
    done = sum(row.verified_in_full for row in rows)
    click.echo(f"wrote {output}: {len(rows)} winners, {done} of them verified in full")


if __name__ == "__main__":
    main()
