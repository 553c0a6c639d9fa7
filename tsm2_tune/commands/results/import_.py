"""`tsm2-tune import`: add trials from another database or file."""

from __future__ import annotations

import click

import tsm2_tune
from tsm2_tune.commands import completion
from tsm2_tune.commands.errors import Command
from tsm2_tune.commands.options import database_option
from tsm2_tune.console.printable import printable, tell
from tsm2_tune.console.tables import waiting
from tsm2_tune.tuner.results.storage.addresses import shown_name

MOST_PRINTED = 20  # limit of the printed lines about left-out configurations, and of those about conflicts


@click.command("import", cls=Command)
@click.argument("source", metavar="FILE", shell_complete=completion.importable)
@database_option()
def import_(source: str, database: str) -> None:
    """Add trials from another database or file.

    FILE is a database, or a file that `tsm2-tune export` wrote as .jsonl, T4 or a cache of Kernel Tuner.

    \b
    tsm2-tune import colleague.db
    tsm2-tune import h200.jsonl --db results.db
    tsm2-tune import pretuned:h200 --db h200.db

    Existing trials stay, so importing a file twice changes nothing. FILE is only read. pretuned:h100 and
    pretuned:h200 are trials included in the package.
    """
    with waiting(f"importing {shown_name(source)}") as show:
        found = tsm2_tune.import_trials(source, database, on_progress=show)
    print_import(database, found)


def print_import(name: str, found: tsm2_tune.Imported) -> None:
    """Print configurations that were not imported, those whose trials contradict stored trials, and the counts."""
    for sentences in (found.left_out, found.conflicts):
        for sentence in sentences[:MOST_PRINTED]:
            tell(sentence)
        if len(sentences) > MOST_PRINTED:
            tell(f"{sentences[0].partition(':')[0]}: {len(sentences) - MOST_PRINTED} more configurations like these")
    click.echo(printable(f"{shown_name(name)}: {found}"))
