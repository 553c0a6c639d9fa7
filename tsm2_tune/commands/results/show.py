"""`tsm2-tune show`: show one trial, or list all trials."""

from __future__ import annotations

from typing import Any

import click

from tsm2_tune.commands.errors import Command, option
from tsm2_tune.commands.options import database_option, json_option, selection_options
from tsm2_tune.commands.results.forget import TRIAL
from tsm2_tune.console import tables
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results.storage.addresses import shown_name


@click.command(cls=Command)
@click.argument("trial", type=TRIAL, required=False)
@database_option(reads=True)
@selection_options
@option("--samples", "has_samples", is_flag=True, help="With a TRIAL: also every sample of its time.")
@option("--source", "has_source", is_flag=True, help="With a TRIAL: also its CUDA source.")
@json_option
def show(
    trial: int | None, database: str, which: dict[str, Any], has_samples: bool, has_source: bool, as_json: bool
) -> None:
    """Show one trial, or list all trials.

    \b
    tsm2-tune show
    tsm2-tune show 35 --samples
    """
    from tsm2_tune.api.selection import selected
    from tsm2_tune.console import trial_tables
    from tsm2_tune.tuner.results.store import Store

    selection = selected(**which)
    has_selection = selection.device is not None or selection.cache is not None or selection.is_of_problems
    if trial is not None and has_selection:
        raise click.UsageError(
            "--device, --shapes, --dtype, --op and --cache select from the list: leave them or TRIAL out"
        )
    if trial is None and (has_samples or has_source):
        raise click.UsageError("--samples and --source need one trial: name its number, such as show 35")
    with Store.open(database, create=False) as store:
        if trial is not None:
            shown = {"as_json": as_json, "has_samples": has_samples, "has_source": has_source}
            trial_tables.trial_in_full(store.trial(trial), tables.console(), **shown)
            return
        device = selection.device_in(store)
        every = [line for line in store.listing() if device is None or line.device == device]
    of_state = [line for line in every if selection.cache is None or line.cache == selection.cache]
    lines = [line for line in of_state if not selection.is_of_problems or Problem.parse(line.problem) in selection]
    if not lines:
        stored = [(Problem.parse(line.problem), line.cache) for line in every]
        selection.refuse_all("trial", stored, shown_name(database))
    trial_tables.trials_table(lines, tables.console(), as_json=as_json)
