"""`tsm2-tune confirm`: time the fastest stored kernels of each problem again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

import tsm2_tune
from tsm2_tune.commands.errors import Command, ended_by_signals
from tsm2_tune.commands.options import database_option, json_option, selection_options, wait_option
from tsm2_tune.console import tables
from tsm2_tune.console.printable import fields, print_json, tell
from tsm2_tune.errors import InputError
from tsm2_tune.tuner.results.storage.addresses import command_on, shown_name

if TYPE_CHECKING:
    from tsm2_tune.tuner.runs.events import Confirmed, Event


@click.command(cls=Command)
@database_option(positional=True)
@selection_options
@wait_option
@json_option
@click.pass_context
def confirm(ctx: click.Context, database: str, which: dict[str, Any], wait: bool, as_json: bool) -> None:
    """Time stored winners again on this device.

    \b
    tsm2-tune confirm --device 0 --shapes 20480x16x20480

    For each problem, a new process verifies the finalists (the few fastest kernels) in full, and times them
    interleaved: this is a final. It times cuBLAS too if cuBLAS was timed in the earlier final. One line per problem
    says whether the same kernel is the fastest, and by how many percent its time changed. New times are added to the
    database. A kernel that is now wrong is no longer a candidate. The exit status is 1 if a winner changed, a kernel
    is wrong, or a final could not be repeated.
    """

    from tsm2_tune.tuner.runs.events import Confirmed, Noted

    def show(event: Event) -> None:
        if isinstance(event, Noted):
            tell(str(event))
        elif isinstance(event, Confirmed) and not as_json:
            tables.print_line(tables.console(), str(event))

    with ended_by_signals(ctx, database, stderr=as_json), tables.waiting("repeating finals"):
        found = tsm2_tune.confirm(database, wait=wait, on_event=show, **which)
    if not found:
        raise InputError(
            f"{shown_name(database)} has no winner for this selection on this device:"
            f" {command_on('best', database)} shows what it has"
        )
    if as_json:
        print_json([facts(one) for one in found])
    if not all(one.is_kept for one in found):
        ctx.exit(1)


def facts(one: Confirmed) -> dict[str, Any]:
    """Return the fields of one confirmed problem for JSON, without the timing samples."""
    return {
        "problem": one.before.problem.text,
        "device": one.before.device,
        "l2_state": one.before.cache,
        "kept": one.is_kept,
        "previous_config": one.before.config,
        **fields(one.now, "config"),
        "previous_us": one.before.median_us,
        "remeasured_us": one.again and one.again.median_us,
        **fields(one.now, "median_us vendor_us"),
        "drift_percent": None if one.drift is None else 100 * one.drift,
        "change": one.change,
        "spread_percent": 100 * one.spread,
        "slowed_samples": one.again and one.again.slowed,
        "wrong_finalists": [fields(each, "config outcome detail") for each in one.wrong],
        "error": one.trouble,
    }
