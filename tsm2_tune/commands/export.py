"""`tsm2-tune export`: write the fastest kernels as a Python module, a C library or a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import tsm2_tune
from tsm2_tune.api.parse import FORMAT_OF_ENDING, FORMATS, MOST_WITHIN
from tsm2_tune.commands import completion
from tsm2_tune.commands.errors import Command, ended_by_signals, option
from tsm2_tune.commands.options import (
    Choice,
    Percent,
    database_option,
    is_given,
    output_option,
    selection_options,
    wait_option,
)
from tsm2_tune.console import tables
from tsm2_tune.console.printable import tell
from tsm2_tune.tuner.results.storage.addresses import PREFIX, is_pretuned, shown_name


@click.command(cls=Command)
@database_option(reads=True)
@option("--pretuned", metavar="CARD", help="Short for --db pretuned:CARD, the pretuned kernels of this card.")
@selection_options
@option(
    "--format",
    "form",
    type=Choice(FORMATS),
    help=f"What to write. By default the file's suffix decides: {', '.join(FORMAT_OF_ENDING)}.",
)
@option(
    "--family",
    metavar="NAME",
    shell_complete=completion.families,
    help="Only trials of this family, in t4 and kernel-tuner-cache.",
)
@output_option(required=True, help="The file to write; - is standard output.")
@option(
    "--binaries/--no-binaries",
    default=True,
    show_default=True,
    help="Include compiled kernels in a module, if nvcc is installed.",
)
@option(
    "--allow-unverified",
    is_flag=True,
    help="Also export binaries that differ from the verified ones, such as after an update of the compiler.",
)
@option(
    "--launcher",
    is_flag=True,
    help="Embed a compiled launcher in a module, for faster calls (needs a C++ compiler).",
)
@option(
    "--between/--no-between",
    default=None,
    help="Include kernels for shapes between the tuned ones in a module or library."
    " [default: --between, or --no-between with --within]",
)
@option(
    "--within",
    type=Percent(MOST_WITHIN),
    metavar="PERCENT",
    help="Only the fewest kernels that keep each shape within this much of its best time, such as 3%."
    " Missing times are measured if the device is here.",
)
@option("--no-measure", is_flag=True, help="With --within: use only times that are stored.")
@wait_option
@click.pass_context
def export(
    ctx: click.Context,
    /,
    database: str,
    pretuned: str | None,
    which: dict[str, Any],
    form: str | None,
    family: str | None,
    output: str,
    binaries: bool,
    allow_unverified: bool,
    launcher: bool,
    between: bool | None,
    within: str | None,
    no_measure: bool,
    wait: bool,
) -> None:
    """Write the winners as a module, library or table.

    \b
    tsm2-tune export -o best_kernels.py
    tsm2-tune export --launcher -o best_kernels.py
    tsm2-tune export -o libtsm2.so
    tsm2-tune export --within 3% -o best_kernels.py
    tsm2-tune export --pretuned h100 -o best_kernels.py
    tsm2-tune export -o h200.jsonl
    tsm2-tune export --format t4 --shapes 20480x16x20480 -o trials.json
    tsm2-tune export --format kernel-tuner-cache --family stream_a_fma -o stream_a_fma.json

    `tsm2-tune import` reads a file of trials (.jsonl). A T4 file, like a cache file of Kernel Tuner, contains all
    trials of one problem on one device.
    """
    from tsm2_tune.console.export_progress import ExportProgress
    from tsm2_tune.tuner.export.library import LIBRARY_SUFFIXES
    from tsm2_tune.tuner.written_files import written

    if pretuned is not None:
        if is_given(ctx, "database"):
            raise click.UsageError("--pretuned and --db each choose the kernels: name one of them")
        database = pretuned if is_pretuned(pretuned) else PREFIX + pretuned
    form = form or _format_of(output)
    options: dict[str, Any] = {
        "family": family, "binaries": binaries, "launcher": launcher, "between": between, "within": within,
        "measure": not no_measure, "wait": wait, "allow_unverified": allow_unverified,
    }  # fmt: skip
    into_file = output != "-"
    ended = tables.waiting(f"exporting {shown_name(database)}") if within is None else ended_by_signals(ctx, None)
    with ended, ExportProgress(tables.console(stderr=not into_file)) as shown:
        path = output if into_file else None
        exported = tsm2_tune.export(database, format=form, output=path, **which, **options, on_event=shown.show)
    if form == "library":
        output = ", ".join(output.removesuffix(".so") + one for one in LIBRARY_SUFFIXES)
        tell(written(form, output, exported.counts))
    elif into_file:
        tell(written(form, output, exported.counts))
    elif exported.text is not None:
        click.echo(exported.text.encode(), nl=False)  # UTF-8 in any terminal: a user redirects this to a file


def _format_of(output: str) -> str:
    """Return the export format for a file name's suffix. Raise UsageError if the suffix is unknown."""
    if Path(output).is_dir():
        raise click.UsageError(f"{output} is a directory: name a file in it")
    found = FORMAT_OF_ENDING.get(Path(output).suffix.lower())
    if found is None:
        raise click.UsageError(
            f"{output}: its suffix names no format: choose one with --format ({', '.join(FORMATS)}), or use the"
            f" suffix {', '.join(FORMAT_OF_ENDING)}"
        )
    return found
