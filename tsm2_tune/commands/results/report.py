"""`tsm2-tune report`: write an HTML page with charts and tables of a database."""

from __future__ import annotations

from typing import Any

import click

import tsm2_tune
from tsm2_tune.commands.errors import Command, option
from tsm2_tune.commands.options import database_option, output_option, selection_options
from tsm2_tune.console import tables
from tsm2_tune.console.printable import tell
from tsm2_tune.tuner.results.storage.addresses import shown_name


@click.command(cls=Command)
@database_option(reads=True, positional=True)
@selection_options
@option(
    "--compare",
    multiple=True,
    type=click.Path(dir_okay=False),
    metavar="OTHER.db",
    help="Compare the winners with those of this database. May be given several times.",
)
@option("--title", default="", metavar="TEXT", help="The heading of the page.")
@option("--note", default="", metavar="TEXT", help="A text below the heading.")
@output_option(default="report.html", show_default=True, help="The HTML file to write; - is standard output.")
def report(
    database: str, which: dict[str, Any], compare: tuple[str, ...], title: str, note: str, output: str
) -> None:
    """Write an HTML page with charts and tables.

    \b
    tsm2-tune report
    tsm2-tune report h200.db --compare h100.db -o cards.html

    The page is one file that needs no network. It shows gains over cuBLAS, winners, a roofline, the progress of each
    search, times over two tunables, and trials. Writing it needs the package vl-convert-python.
    """
    into_file = output != "-"
    with tables.waiting(f"reading {shown_name(database)}"):
        path = output if into_file else None
        exported = tsm2_tune.report(database, output=path, compare=compare, title=title, note=note, **which)
    if into_file:
        tell(f"wrote {output}")
    elif exported.text is not None:
        click.echo(exported.text.encode(), nl=False)
