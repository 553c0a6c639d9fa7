"""`tsm2-tune source`: print the CUDA source of a kernel."""

from __future__ import annotations

import click

from tsm2_tune.api.parse import LAYOUTS, OP_SYNTAX
from tsm2_tune.commands import completion
from tsm2_tune.commands.errors import Command, option
from tsm2_tune.commands.options import Choice, database_option, is_given, math_option
from tsm2_tune.commands.results.forget import TRIAL
from tsm2_tune.console.printable import tell


@click.command(cls=Command)
@click.argument("kernel", metavar="TRIAL|CONFIGURATION", shell_complete=completion.configurations)
@option("--dtype", "dtype", shell_complete=completion.dtypes, help="Element type. [default: f32 if it has that]")
@math_option
@option("--op", "op", shell_complete=completion.ops, help=f"Which matrices are transposed. {OP_SYNTAX}")
@option("--layout", type=Choice(LAYOUTS), help="Storage order that --op refers to, as for tuning.")
@database_option(reads=True)
@click.pass_context
def source(
    ctx: click.Context, kernel: str, dtype: str | None, math: str, op: str | None, layout: str | None, database: str
) -> None:
    """Print the CUDA source of a kernel.

    \b
    tsm2-tune source 35
    tsm2-tune source tsm2:version=v3,threads=128,columns=16,prefetch=4 --dtype f64

    A number is the number of a trial, which `best` and `show` print; its source is stored in the database. Write a
    configuration as `best --long` and `space --list` print it. Without --dtype, --op and --layout, the source is for
    the first element type and layout that the kernel supports.
    """
    if kernel.isascii() and kernel.isdecimal():
        from tsm2_tune.tuner.results.store import Store

        trial = TRIAL(kernel, ctx=ctx)
        with Store.open(database, create=False) as store:
            click.echo(store.trial(trial).trial.source.text, nl=False)
        return
    from tsm2_tune.api.source import source_of

    found = source_of(kernel, dtype=dtype, math=math if is_given(ctx, "math") else None, op=op, layout=layout)
    if found.options:
        tell(f"for {found.options}")
    click.echo(found.text, nl=False)
