"""`tsm2-tune best`: show the fastest kernel of each problem."""

from __future__ import annotations

from typing import Any

import click

import tsm2_tune
from tsm2_tune.commands.errors import Command, option
from tsm2_tune.commands.options import Choice, WholeNumber, database_option, json_option, selection_options
from tsm2_tune.console import tables
from tsm2_tune.console.printable import tell
from tsm2_tune.console.winner_columns import SORTS
from tsm2_tune.tuner.results.storage.addresses import shown_name, tune_first


@click.command(cls=Command)
@database_option(reads=True, positional=True)
@selection_options
@option("--sort", type=Choice(tuple(SORTS)), help="Sort by this column, the least first: x puts losses first.")
@option("--limit", type=WholeNumber(min=1), metavar="N", help="Only the first N.")
@option("--long", "is_long", is_flag=True, help="Show configurations, ties and other states of the L2 too.")
@json_option
@click.pass_context
def best(
    ctx: click.Context,
    database: str,
    which: dict[str, Any],
    sort: str | None,
    limit: int | None,
    is_long: bool,
    as_json: bool,
) -> None:
    """Show the fastest kernel of each problem.

    \b
    tsm2-tune best
    tsm2-tune best h100.db --dtype f64 --sort x --limit 10

    Times are medians in microseconds. +- is the distance to the farther end of the 95 % confidence interval. x is
    cuBLAS's time divided by the kernel's. % floor is the least time that memory and arithmetic allow, divided by the
    kernel's time. `show TRIAL` prints more about a trial. The exit status is 1 if there is no winner.
    """
    from tsm2_tune.api.selection import selected

    with tables.waiting(f"reading {shown_name(database)}"):
        rows = tsm2_tune.best(database, **which)
    if not rows:
        selection = selected(**which)
        every = tsm2_tune.best(database, device=selection.device)
        selection.refuse_all("winner", [(row.problem, row.cache) for row in every], shown_name(database))
        if not every and not as_json:
            tell(f"{shown_name(database)} has no winner yet: {tune_first(database)}")
    if sort is not None:
        rows = tuple(sorted(rows, key=SORTS[sort]))
    if as_json:
        from tsm2_tune.tuner.export.tables import json_text

        click.echo(json_text(rows[:limit], shown_name(database)), nl=False)
    else:
        tables.winners_table(rows, tables.console(), limit=limit, is_long=is_long)
    if not rows:
        ctx.exit(1)
