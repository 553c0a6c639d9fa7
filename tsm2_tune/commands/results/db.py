"""`tsm2-tune db`: check, merge, vacuum and migrate a database."""

from __future__ import annotations

import click

import tsm2_tune
from tsm2_tune.commands import completion
from tsm2_tune.commands.doctor import STATE_WIDTH
from tsm2_tune.commands.errors import Group, option
from tsm2_tune.commands.options import database_option, json_option
from tsm2_tune.commands.results.import_ import print_import
from tsm2_tune.console import tables
from tsm2_tune.console.printable import print_json, printable, tell
from tsm2_tune.tuner.results.storage.addresses import place_of, shown_name


@click.group(cls=Group)
def db() -> None:
    """Check, merge, clean or migrate a database."""


@db.command()
@database_option(reads=True, positional=True)
@json_option
@click.pass_context
def check(ctx: click.Context, database: str, as_json: bool) -> None:
    """Check whether the database is consistent.

    Each line after the database's name is a problem (rows are damaged or contradict each other) or a note (something
    is old or not needed). The check reads a copy, so it changes nothing and other runs continue; only a killed
    program's transaction is rolled back, as by every command. If it finds a problem, the exit status is 1.
    """
    from tsm2_tune.tuner.doctor.finding import State
    from tsm2_tune.tuner.results.maintenance import integrity

    with tables.waiting(f"checking {shown_name(database)}"):
        found = integrity.check(database)
    is_sound = all(one.state is not State.PROBLEM for one in found)
    if as_json:
        print_json({"database": shown_name(database), "is_sound": is_sound, "findings": found})
    else:
        click.echo(printable(f"{shown_name(database)}:"))
        for one in found:
            tables.print_hanging(tables.console(), one.text, STATE_WIDTH)
    if not is_sound:
        ctx.exit(1)


@db.command()
@click.argument("sources", metavar="FILE...", nargs=-1, required=True, shell_complete=completion.importable)
@database_option()
def merge(sources: tuple[str, ...], database: str) -> None:
    """Add all trials of FILEs to the database, which is created if it is missing.

    \b
    tsm2-tune db merge node1.db node2.db --db all.db

    Each file is added as by `tsm2-tune import`: nothing is lost, the order does not matter, and adding a file twice
    changes nothing. If two databases contradict each other, a message says which result is used. If one FILE cannot
    be read, or was written by a newer version, nothing is added.
    """
    from tsm2_tune.api.import_trials import refuse_others

    for source in sources:
        refuse_others(source)
    for source in sources:
        with tables.waiting(f"merging {shown_name(source)}") as show:
            found = tsm2_tune.import_trials(source, database, on_progress=show)
        print_import(source, found)


@db.command()
@option("--alone", is_flag=True, help="No run uses the database, so it may be locked for long.")
@database_option(positional=True)
def vacuum(alone: bool, database: str) -> None:
    """Remove unused rows from the database, and compact its file.

    Unused rows are kernels, problems, runs and cuBLAS times without trials, and expired leases: a lease reserves a
    problem for a run. Other runs continue meanwhile. If compacting a large file would block them for too long, it is
    skipped, unless --alone is given.
    """
    from tsm2_tune.tuner.results.maintenance import vacuum as vacuums

    with tables.waiting(f"vacuuming {shown_name(database)}"):
        found = vacuums.vacuum(place_of(database), alone=alone)
    click.echo(printable(f"{shown_name(database)}: {found}"))
    if not found.is_compact:
        tell(
            "the file was not compacted, since other runs would wait too long: use --alone when no other run uses it"
        )


@db.command()
@option("--keep", is_flag=True, help="Keep a copy of the old database beside the new one.")
@database_option(positional=True)
def migrate(keep: bool, database: str) -> None:
    """Convert a database of an older version to this version's schema.

    Every command does so when it opens an older database. This command also prints each step, and can keep a copy.
    """
    from tsm2_tune.tuner.results.maintenance import migration

    with tables.waiting(f"migrating {shown_name(database)}"):
        found = migration.migrate(place_of(database), keep=keep)
    click.echo(printable(f"{shown_name(database)}: {found}"))
    for step in found.steps:
        click.echo(printable(step))
