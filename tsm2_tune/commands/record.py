"""`tsm2-tune record`: run a program, and write the shapes of its cuBLAS GEMM calls to a file for --shapes."""

from __future__ import annotations

import click

from tsm2_tune.api.parse import share_of
from tsm2_tune.commands.errors import Command, option
from tsm2_tune.commands.options import Percent, output_option
from tsm2_tune.commands.run import PROGRAM, failed, program_argument
from tsm2_tune.console.printable import tell
from tsm2_tune.errors import InputError
from tsm2_tune.interpose.preload import Standing, journal_folder, path_of_program, ran
from tsm2_tune.tuner.results.trial import count_text
from tsm2_tune.tuner.written_files import refuse_unwritable, write

WHOLE = 1.0  # 100 % of the GPU time


@click.command(cls=Command, context_settings=PROGRAM)
@output_option(required=True, help="The file to write, for --shapes @FILE; - is standard output.")
@option(
    "--worth",
    type=Percent(WHOLE),
    default="0%",
    show_default=True,
    metavar="PERCENT",
    help="Write products with a smaller share of all GPU time as comments. If products that differ in one extent"
    " alone have this share together, a few of them are kept.",
)
@program_argument
@click.pass_context
def record(ctx: click.Context, output: str, worth: str, program: tuple[str, ...]) -> None:
    """List the cuBLAS products of a program.

    The program runs unchanged. The list has each product's shape, calls and GPU time.

    \b
    tsm2-tune record --output products.txt --worth 1% -- python simulation.py
    tsm2-tune --shapes @products.txt --device 0
    """
    from tsm2_tune.console.shapes_file import recorded
    from tsm2_tune.interpose.build import standin_path
    from tsm2_tune.interpose.journal import written_in

    if output != "-":
        refuse_unwritable(output)  # check now: the program may run for hours
    path_of_program(program[0])
    standing = Standing(standin_path(), has_times=True)
    with journal_folder() as journal:
        status = ran(program, standing, journal)
        written = written_in(journal)
    if status and written.is_empty:
        tell(f"nothing was written: {failed(status)} before any product was seen")
        ctx.exit(status)
    text = "".join(f"{line}\n" for line in recorded(written, program, share_of(worth, WHOLE)))
    if output == "-":
        click.echo(text, nl=False)
    else:
        _write(text, output)
        calls = sum(one.calls for one in written.seen)
        products = f"{count_text(len(written.seen), 'different product')}, {calls} in all"
        tell(f"wrote {output}: {written.none_seen if written.is_empty else products}")
        for sentence in written.besides:
            tell(sentence)
    ctx.exit(status)


def _write(text: str, output: str) -> None:
    """Write the text to a file; if that fails, to standard output, so that it is not lost, and raise InputError."""
    try:
        write(text, output)
    except InputError as error:
        click.echo(text, nl=False)
        raise InputError(f"{error}; what was recorded is on standard output") from None
