"""`tsm2-tune quarantine`: list or release kernels that hung or faulted, which later searches skip."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from tsm2_tune.commands.errors import Command, option
from tsm2_tune.commands.options import database_option, json_option, stored_device_option
from tsm2_tune.console import tables
from tsm2_tune.console.printable import one_line, print_json, tell
from tsm2_tune.tuner.results.storage.addresses import command_on
from tsm2_tune.tuner.results.trial import count_text

if TYPE_CHECKING:
    from tsm2_tune.tuner.search.quarantine import Quarantined

DIGITS = 12  # digits of a digest that the table shows


@click.command(cls=Command)
@option("--forgive", "digest", metavar="DIGEST", help="Release the kernel whose digest begins with this, or all.")
@stored_device_option
@database_option(reads=True, positional=True)
@json_option
def quarantine(digest: str | None, device: str | None, database: str, as_json: bool) -> None:
    """List or forgive kernels that hung or faulted.

    \b
    tsm2-tune quarantine
    tsm2-tune quarantine --forgive 3f9a0c51

    If a kernel hangs or faults for one problem, searches for other problems skip it until it is forgiven, or the
    compiler or driver changes. A larger --run-limit retries kernels that timed out. `tsm2-tune --retry
    crashed,timed-out` retries all.
    """
    from tsm2_tune.api.selection import selected
    from tsm2_tune.tuner.results.store import Store
    from tsm2_tune.tuner.search.quarantine import checked_digest, entries, forgive

    if digest is not None:
        checked_digest(digest)  # before the database is opened
    with Store.open(database, create=False) as store:
        name = selected(device).device_in(store)
        if digest is not None:
            count = forgive(store.database, digest, name)
            click.echo(f"released: {count_text(count, 'quarantined kernel')}")
            return
        found = [one for one in entries(store.database) if name is None or one.device_name == name]
    if as_json:
        print_json(found)
    elif found:
        _table(found)
    else:
        click.echo("no kernel is quarantined")


def print_quarantined(count: int, database: str) -> None:
    """Print how many kernels a search skipped because they hung or faulted for another problem, if any."""
    if count:
        tell(f"{count} quarantined: `{command_on('quarantine', database)}` lists them")


def _table(found: list[Quarantined]) -> None:
    columns: dict[str, Callable[[Quarantined], str]] = {
        "digest": lambda one: one.digest[:DIGITS],
        "device": lambda one: one.device_name,
        "configuration": lambda one: one.config,
        "ended": lambda one: one.outcome,
        "times": lambda one: str(one.times),
        "last": lambda one: one.last_at[: len("2026-01-02T03:04")],
        "problem": lambda one: one.problem,
        "detail": lambda one: one_line(one.detail, 60),
        "under": lambda one: f"{one.toolkit}, {one.driver}",
    }
    tables.print_table(tables.console(), columns, found)
