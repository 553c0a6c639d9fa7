"""`tsm2-tune pack`: tune a GPU model for all products, within a limit of time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

import tsm2_tune
from tsm2_tune.api.parse import MOST_HOURS
from tsm2_tune.commands.errors import Command, ended_by_signals, option
from tsm2_tune.commands.options import devices_option, wait_option
from tsm2_tune.commands.predict import number_text
from tsm2_tune.console import tables
from tsm2_tune.console.printable import tell
from tsm2_tune.generator.pack_shapes import DTYPES, KINDS
from tsm2_tune.tuner.results.storage.addresses import shown_name

if TYPE_CHECKING:
    from tsm2_tune.api.pack import Packed
    from tsm2_tune.tuner.runs.events import Event


@click.command(cls=Command)
@devices_option
@option(
    "--hours",
    type=click.FloatRange(0, MOST_HOURS, min_open=True),
    default=1.0,
    show_default=True,
    help="Time after which no further batch of six problems is begun.",
)
@option("--dtype", "dtypes", default=",".join(DTYPES), show_default=True, metavar="TYPE,...", help="Element types.")
@option(
    "--only",
    "kinds",
    default=",".join(KINDS),
    show_default=True,
    metavar="KIND,...",
    help="Kinds of products. R: large x skinny. L: tall x small. T: skinny^T x skinny. gram: X^T X. vector: large x a"
    " vector. wide: large x 65 to 1024 columns.",
)
@option(
    "--db", "database", default=None, metavar="FILE", help="The tuning database.  [default: OUTPUT, ending in .db]"
)
@option("--output", "-o", required=True, metavar="FILE", help="The file of trials, such as a100.jsonl.")
@wait_option
@click.pass_context
def pack(
    ctx: click.Context, spec: str | None, hours: float, dtypes: str, kinds: str, database: str | None, output: str,
    wait: bool,
) -> None:  # fmt: skip
    """Tune a GPU model for all products.

    \b
    tsm2-tune pack --device 0 --hours 1 -o a100.jsonl
    tsm2-tune pack --device 0,1 --hours 8 --dtype f32,f64 -o a100.jsonl
    tsm2-tune export --db a100.db -o best_kernels.py

    The command chooses the shapes: of all kinds, types and storage orders, from small to large, in an order that
    covers them evenly. So it may be stopped at any time. The same command continues with further shapes. At the end
    it writes all trials to OUTPUT, which `import` reads. It prints how much faster than cuBLAS an exported module is:
    at the shapes that were tuned, and at the same shapes if each is left out of the module.
    """
    from tsm2_tune.tuner.runs.events import Noted, OfRun, ProblemEnded, RunStarted

    console, start, ended = tables.console(), time.monotonic(), 0
    name = database if database is not None else f"{output.removesuffix('.jsonl')}.db"

    def show(event: Event) -> None:
        nonlocal ended
        event = event.event if isinstance(event, OfRun) else event
        if isinstance(event, RunStarted) and not ended:
            tables.print_line(console, f"{event.target.identity.name}: {hours:g} hours, into {shown_name(name)}")
        elif isinstance(event, Noted):
            tell(str(event))
        elif isinstance(event, ProblemEnded):
            ended += 1
            minutes = (time.monotonic() - start) / 60
            winner = "no winner" if event.winner is None else event.winner.summary
            tables.print_line(console, f"{minutes:5.1f} min {ended:4}  {event.problem.text}: {winner}")

    with ended_by_signals(ctx, name):
        found = tsm2_tune.pack(
            output, device=spec, hours=hours, dtype=dtypes, only=kinds, db=database, wait=wait, on_event=show
        )
    _print(found)


def _print(found: Packed) -> None:
    """Print the table of gains, and what the call did."""
    from tsm2_tune.tuner.packs.gains import mean, share_slower

    console = tables.console()
    cells = []
    for (kind, dtype), one in found.gains.items():
        slower = share_slower(one.left_out)
        cells.append(
            [
                kind,
                dtype,
                str(len(one.tuned) or "-"),
                number_text(mean(one.tuned), 2),
                str(len(one.left_out) or "-"),
                number_text(mean(one.left_out), 2),
                "-" if slower is None else f"{slower:.0%}",
                number_text(min(one.left_out, default=None), 2),
            ]
        )
    heads = ["kind", "type", "tuned", "x gemm", "left out", "x gemm", "slower", "worst"]
    tables.print_table(console, heads, cells, right=(2, 3, 4, 5, 6, 7))
    tables.print_line(
        console,
        "x gemm: times as fast as cuBLAS's gemm; slower: by over 3 %, of the left-out shapes; -: not measured",
    )
    each = found.seconds / found.new_problems if found.new_problems else None
    more = "" if each is None else f"; an hour more tunes about {3600 / each:.0f} problems"
    tables.print_line(
        console, f"wrote {found.output}: {found.problems} problems, {found.new_problems} of them new{more}"
    )
