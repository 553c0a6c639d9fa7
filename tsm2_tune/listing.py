"""The commands that show what is stored: winners and trials."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

import tsm2_tune
from tsm2_tune import display
from tsm2_tune.command_options import database_option, json_option, selection_options
from tsm2_tune.errors import InputError
from tsm2_tune.generator.problem import Problem
from tsm2_tune.selection import Selection, selected
from tsm2_tune.trials import TrialNumber
from tsm2_tune.tuner.addresses import shown_name
from tsm2_tune.tuner.store import Store
from tsm2_tune.usage import tell


@click.command()
@database_option
@selection_options
@json_option
def best(database: str, which: dict[str, Any], as_json: bool) -> None:
    """Show the winners in the database."""
    with display.waiting(f"reading {shown_name(database)}"):
        rows = tsm2_tune.best(database, **which)
    if not rows:
        selection = selected(**which)
        every = tsm2_tune.best(database, device=selection.device)
        _refuse_nothing("winner", [(row.problem, row.cache) for row in every], selection, database)
        if not every and not as_json:
            tell(f"{shown_name(database)} has no winner yet: tune first")
    if as_json:
        click.echo(json.dumps([{**asdict(row), "parameters": row.tunables} for row in rows], indent=2))
    else:
        display.winners_table(rows, display.console())


def _refuse_nothing(what: str, stored: Sequence[tuple[Problem, str]], selection: Selection, database: str) -> None:
    """InputError where there are some, none of which was asked for."""
    if (selection.is_of_problems or selection.cache is not None) and stored:
        raise InputError(selection.none_of(what, stored, shown_name(database)))


@click.command()
@click.argument("trial", type=TrialNumber(), required=False)
@database_option
@selection_options
@json_option
def show(trial: int | None, database: str, which: dict[str, Any], as_json: bool) -> None:
    """Show one TRIAL in full, or list all trials."""
    selection = selected(**which)
    of_list = selection.device is not None or selection.cache is not None or selection.is_of_problems
    if trial is not None and of_list:
        raise click.UsageError(
            "--device, --shapes, --dtype, --op and --cache are of the list: leave them or TRIAL out"
        )
    with Store.open(database, create=False) as store:
        if trial is not None:
            display.trial_in_full(store.trial(trial), display.console(), as_json=as_json)
            return
        device = selection.device_in(store)
        every = [line for line in store.listing() if device is None or line.device == device]
    of_state = [line for line in every if selection.cache is None or line.cache == selection.cache]
    lines = [line for line in of_state if not selection.is_of_problems or Problem.parse(line.problem) in selection]
    if not lines:
        stored = [(Problem.parse(line.problem), line.cache) for line in every]
        _refuse_nothing("trial", stored, selection, database)
    display.trials_table(lines, display.console(), as_json=as_json)
