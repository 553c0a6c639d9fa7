"""`tsm2-tune forget`: remove trials from the database."""

from __future__ import annotations

from collections.abc import Mapping

import click

from tsm2_tune.api.parse import STORED_OUTCOMES
from tsm2_tune.commands.errors import Command
from tsm2_tune.commands.options import WholeNumber, database_option, outcomes_option, stored_device_option
from tsm2_tune.console.printable import printable
from tsm2_tune.tuner.results.storage.addresses import shown_name
from tsm2_tune.tuner.results.trial import Outcome, count_text

TRIAL = WholeNumber(1, 2**63 - 1)  # a trial's number, which `tsm2-tune show` prints, up to SQLite's limit


@click.command(cls=Command)
@click.argument("trials", metavar="[TRIAL]...", type=TRIAL, nargs=-1)
@outcomes_option("--outcome", "outcomes", STORED_OUTCOMES, "All trials that ended as")
@stored_device_option
@database_option()
def forget(trials: tuple[int, ...], outcomes: frozenset[Outcome], device: str | None, database: str) -> None:
    """Remove trials, so that they are tried again.

    \b
    tsm2-tune forget --outcome failed
    tsm2-tune forget --device h100
    tsm2-tune forget 17 18

    --device alone removes all trials of that device, such as imported ones.

    `tsm2-tune --retry failed` retries failures without removing them first.
    """
    if not trials and not outcomes and device is None:
        raise click.UsageError(
            "nothing to forget: name trials, outcomes with --outcome, or a device with --device; `tsm2-tune show`"
            " lists all three"
        )
    from tsm2_tune.api.selection import selected
    from tsm2_tune.tuner.results.store import Store

    if trials and device is not None:
        raise click.UsageError("a trial's number identifies its device: leave --device or the numbers out")

    def tell(counts: Mapping[str, int]) -> None:
        parts = [f"{count} {outcome}" for outcome, count in sorted(counts.items())]
        total = sum(counts.values())
        on = "" if name is None else f" on {name}"
        which = f"{count_text(total, 'trial')} of {shown_name(database)}{on}"
        click.echo(printable(f"forgetting {which}: {', '.join(parts) or 'none ended so'}"))

    with Store.open(database, create=False) as store:
        name = selected(device).device_in(store)
        store.forget(trials, outcomes, tell, device=name)
