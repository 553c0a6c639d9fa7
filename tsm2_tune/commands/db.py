"""The commands that look after a database."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

import tsm2_tune
from tsm2_tune.commands import completion
from tsm2_tune.commands.doctor import STATE_WIDTH
from tsm2_tune.commands.errors import Group, option
from tsm2_tune.commands.import_ import print_import
from tsm2_tune.commands.options import database_option, json_option, named_database
from tsm2_tune.console import tables
from tsm2_tune.console.printable import printable, tell
from tsm2_tune.tuner.results.storage.addresses import place_of, shown_name


@click.group(cls=Group)
def db() -> None:
    """Check, merge, clean or migrate a database."""


@db.command()
@named_database
@json_option
@click.pass_context
def check(ctx: click.Context, database: str, as_json: bool) -> None:
    """Say whether the database is sound.

    Each line is a problem (rows are damaged or contradict each other) or a note (something is old or not needed). It
    reads a copy: runs on the database go on, and nothing is changed. With a problem the exit status is 1.
    """
    from tsm2_tune.tuner.doctor.finding import State
    from tsm2_tune.tuner.results.upkeep import checking

    with tables.waiting(f"checking {shown_name(database)}"):
        found = checking.check(place_of(database))
    is_sound = all(one.state is not State.PROBLEM for one in found)
    if as_json:
        findings = [asdict(one) for one in found]
        click.echo(
            json.dumps({"database": shown_name(database), "is_sound": is_sound, "findings": findings}, indent=2)
        )
    else:
        for one in found:
            tables.print_hanging(tables.console(), one.text, STATE_WIDTH)
    if not is_sound:
        ctx.exit(1)


@db.command()
@click.argument("sources", metavar="FILE...", nargs=-1, required=True, shell_complete=completion.importable)
@database_option
def merge(sources: tuple[str, ...], database: str) -> None:
    """Add all trials of FILEs, one after another, to the database, which is made where it is missing.

    \b
    tsm2-tune db merge node1.db node2.db --db all.db

    Each is put in as by `tsm2-tune import`: nothing is lost, the order does not matter, and twice is as once. A
    sentence says where two databases contradict each other, and what counts then. Where one of them is no such
    file, or is of a newer version, nothing is added.
    """
    from tsm2_tune.api.import_trials import refuse_others

    for source in sources:
        refuse_others(source)
    for source in sources:
        with tables.waiting(f"merging {shown_name(source)}") as show:
            found = tsm2_tune.import_trials(source, database, on_progress=show)
        print_import(found)
        click.echo(printable(f"{shown_name(source)}: {found}"))


@db.command()
@option("--alone", is_flag=True, help="Nobody else uses the database: let it take as long as it takes.")
@named_database
def vacuum(alone: bool, database: str) -> None:
    """Remove what nothing needs, and write the file anew without gaps.

    Kernels, problems, runs and cuBLAS times that no trial has any more, and claims of runs that have ended. Runs on
    the database go on; where the file is so large that they would wait too long, it keeps its gaps without --alone.
    """
    from tsm2_tune.tuner.results.upkeep import vacuuming

    with tables.waiting(f"vacuuming {shown_name(database)}"):
        found = vacuuming.vacuum(place_of(database), alone=alone)
    click.echo(printable(f"{shown_name(database)}: {found}"))
    if not found.is_compact:
        tell("the file has its gaps still: other runs would wait too long; use --alone when there are none")


@db.command()
@option("--keep", is_flag=True, help="Keep a copy of the database as it was beside it.")
@named_database
def migrate(keep: bool, database: str) -> None:
    """Bring a database of an older version to this version's schema.

    Every command that opens such a database does that; this one says what it did, and can keep a copy.
    """
    from tsm2_tune.tuner.results.upkeep import migrating

    with tables.waiting(f"migrating {shown_name(database)}"):
        found = migrating.migrate(place_of(database), keep=keep)
    click.echo(printable(f"{shown_name(database)}: {found}"))
    for step in found.steps:
        click.echo(printable(step))
