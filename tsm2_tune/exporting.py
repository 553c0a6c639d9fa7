"""The command that exports."""

from __future__ import annotations

from typing import Any

import click

import tsm2_tune
from tsm2_tune import completion, display
from tsm2_tune.api.results import FORMATS, contradiction
from tsm2_tune.command_options import Choice, database_option, selection_options, wait_option, within_options
from tsm2_tune.fewest import Choosing
from tsm2_tune.tuner.addresses import shown_name
from tsm2_tune.tuner.export import LIBRARY_SUFFIXES, written
from tsm2_tune.usage import ended_by_signals, tell


@click.command()
@database_option
@selection_options
@click.option("--format", "form", type=Choice(FORMATS), required=True, help="What to write.")
@click.option(
    "--family",
    metavar="NAME",
    shell_complete=completion.families,
    help="Only trials of this family, in t4 and kernel-tuner-cache.",
)
@click.option("--output", required=True, metavar="FILE", help="The file to write; - is standard output.")
@click.option(
    "--binaries/--no-binaries",
    default=True,
    show_default=True,
    help="Whether a module holds compiled kernels, where nvcc is here to compile them.",
)
@click.option(
    "--launcher",
    is_flag=True,
    help="Let a module hold a compiled launcher, by which a call takes less time; the C++ compiler builds it.",
)
@click.option(
    "--between/--no-between",
    default=None,
    help="Whether a module or library also holds kernels that won nothing, and are expected to be faster than winners"
    " at shapes between the tuned ones; without --within it does.",
)
@within_options
@wait_option
@click.pass_context
def export(
    ctx: click.Context,
    /,
    database: str,
    which: dict[str, Any],
    form: str,
    family: str | None,
    output: str,
    binaries: bool,
    launcher: bool,
    between: bool | None,
    within: str | None,
    no_measure: bool,
    wait: bool,
) -> None:
    """Write the winners as an importable module, a C library, a table or a text of trials to import; or all trials of
    a problem on a device as a T4 file or a cache of Kernel Tuner.

    \b
    tsm2-tune export --format module --output best_kernels.py
    tsm2-tune export --format module --launcher --output best_kernels.py
    tsm2-tune export --format library --output libtsm2.so
    tsm2-tune export --within 3% --format module --output best_kernels.py
    tsm2-tune export --format trials --output h200.jsonl
    tsm2-tune export --format t4 --shapes 20480x16x20480 --output trials.json
    tsm2-tune export --format kernel-tuner-cache --family stream_a_fma --output stream_a_fma.json
    """
    measures = not no_measure
    wrong = contradiction(
        form, family=family, binaries=binaries, launcher=launcher, between=between, within=within, measure=measures,
        wait=wait,
    )  # fmt: skip
    if wrong is not None:
        raise click.UsageError(wrong)
    into_file = output != "-"
    ended = (
        display.waiting(f"exporting {shown_name(database)}") if within is None else ended_by_signals(ctx, database)
    )
    with ended, Choosing(display.console(stderr=not into_file)) as shown:
        exported = tsm2_tune.export(
            database,
            format=form,
            output=output if into_file else None,
            **which,
            family=family,
            binaries=binaries,
            launcher=launcher,
            between=between,
            within=within,
            measure=measures,
            wait=wait,
            on_event=shown.show,
        )
    if form == "library":
        tell(f"wrote {', '.join(output.removesuffix('.so') + one for one in LIBRARY_SUFFIXES)}")
    elif into_file:
        tell(written(form, output))
    elif exported.text is not None:
        click.echo(exported.text.encode(), nl=False)  # as files are, whatever a terminal has
