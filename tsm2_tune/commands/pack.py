"""`tsm2-tune pack`: tune a GPU model for all products, within a limit of time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

import tsm2_tune
from tsm2_tune.api.parse import MOST_HOURS
from tsm2_tune.commands import completion
from tsm2_tune.commands.errors import Command, ended_by_signals, option
from tsm2_tune.commands.options import gpus_option, is_given, wait_option
from tsm2_tune.console import tables
from tsm2_tune.console.printable import tell
from tsm2_tune.generator.pack_shapes import DTYPES, KINDS
from tsm2_tune.tuner.measure.vendor.table_cells import number_text
from tsm2_tune.tuner.results.storage.addresses import shown_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tsm2_tune.api.pack import PackCheck, Packed
    from tsm2_tune.tuner.packs.check import CheckedProduct
    from tsm2_tune.tuner.runs.events import Event, Noted

NOT_WITH_CHECK = ("hours", "database", "output")


@click.command(cls=Command)
@gpus_option
@option(
    "--hours",
    type=click.FloatRange(0, MOST_HOURS, min_open=True),
    default=1.0,
    show_default=True,
    help="Time after which no further problems are begun. Six are tuned together.",
)
@option("--dtype", "dtypes", default=",".join(DTYPES), show_default=True, metavar="TYPE,...", help="Element types.")
@option(
    "--only",
    "kinds",
    default=",".join(KINDS),
    show_default=True,
    metavar="KIND,...",
    help="Kinds of products. R: large x skinny. L: tall x small. T: skinny^T x skinny. gram: X^T X. vector: large x a"
    " vector. wide: large x 65 to 1024 columns. small: batches of products up to 32 x 32 x 32. stackR: batches of R"
    " or L. stackT: batches of T.",
)
@option(
    "--db", "database", default=None, metavar="FILE", help="The tuning database.  [default: OUTPUT, ending in .db]"
)
@option(
    "--output",
    "-o",
    default=None,
    metavar="FILE",
    help="The file of trials, such as a100.jsonl.  [required without --check]",
)
@option(
    "--check",
    "checked",
    default=None,
    metavar="FILE",
    shell_complete=completion.importable,
    help="Tune nothing: check a pack on this machine's GPU, which may be another model. FILE is a file of trials, a"
    " database, or pretuned:h100.",
)
@wait_option
@click.pass_context
def pack(
    ctx: click.Context, spec: str | None, hours: float, dtypes: str, kinds: str, database: str | None,
    output: str | None, checked: str | None, wait: bool,
) -> None:  # fmt: skip
    """Tune a GPU model for all products.

    \b
    tsm2-tune pack --device 0 --hours 1 -o a100.jsonl
    tsm2-tune pack --device 0,1 --hours 8 --dtype f32,f64 -o a100.jsonl
    tsm2-tune export --db a100.db -o best_kernels.py
    tsm2-tune pack --check pretuned:h100

    The command chooses the shapes: of all kinds, types, storage orders and sizes, in an order that covers them
    evenly. So it may be stopped at any time. The same command continues with further shapes. At the end it writes all
    trials to OUTPUT, which `import` reads. It prints how much faster than cuBLAS an exported module is: at the tuned
    shapes, and by leave-one-out, at tuned shapes without the kernels and times of the shape.

    With --check the command stores nothing. For two minutes it verifies the kernels that a module exported from the
    pack would choose on this GPU, and times them interleaved with cuBLAS: at tuned shapes, and near to and far from
    the shapes at which the kernel was measured. The last column says whether to trust the pack's kernels of this kind
    and type on this GPU. no: a kernel failed, or the mean is below 1. Otherwise, partly: a product is slower than
    cuBLAS by over 3 %; yes: none is. The exit status is 1 if a kernel failed.
    """
    if checked is not None:
        _check(ctx, checked, spec, dtypes, kinds, wait)
        return
    if output is None:
        raise click.UsageError("Missing option '--output': name the file of trials, such as -o a100.jsonl", ctx)
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
    from tsm2_tune.tuner.packs.gains import mean

    console = tables.console()
    cells = [
        [kind, dtype, str(len(one.tuned) or "-"), number_text(mean(one.tuned), 2), *_gain_cells(one.leave_one_out)]
        for (kind, dtype), one in found.gains.items()
    ]
    heads = ("kind", "type", "tuned", "x gemm", "leave-one-out", "mean", "slower", "worst")
    tables.print_table(console, tables.columns(*heads), cells)
    tables.print_line(
        console,
        "x gemm: times as fast as cuBLAS's gemm; slower: by over 3 %, by leave-one-out; -: not measured",
    )
    each = found.seconds / found.new_problems if found.new_problems else None
    more = "" if each is None else f"; an hour more tunes about {3600 / each:.0f} problems"
    tables.print_line(
        console, f"wrote {found.output}: {found.problems} problems, {found.new_problems} of them new{more}"
    )


def _gain_cells(gains: Sequence[float]) -> list[str]:
    """Return table cells: the number of gains, their mean, the share that is slower than cuBLAS, and the least."""
    from tsm2_tune.tuner.packs.gains import mean, share_slower

    slower = share_slower(gains)
    share = "-" if slower is None else f"{slower:.0%}"
    return [str(len(gains) or "-"), number_text(mean(gains), 2), share, number_text(min(gains, default=None), 2)]


def _check(ctx: click.Context, pack: str, spec: str | None, dtypes: str, kinds: str, wait: bool) -> None:
    """Check a pack and print the table. End with status 1 if a kernel failed."""
    for one in ctx.command.params:
        if one.name in NOT_WITH_CHECK and is_given(ctx, one.name):
            raise click.UsageError(f"--check stores nothing and takes two minutes: leave out {one.opts[0]}", ctx)
    from tsm2_tune.api.pack import CHECK_SECONDS
    from tsm2_tune.tuner.runs.events import Noted

    name, start = shown_name(pack), time.monotonic()
    with ended_by_signals(ctx, None), tables.waiting(f"checking {name}") as show:

        def tell_event(event: Noted | CheckedProduct) -> None:
            if isinstance(event, Noted):
                tell(str(event))
            show(min((time.monotonic() - start) / CHECK_SECONDS, 1.0))

        found = tsm2_tune.check_pack(pack, device=spec, dtype=dtypes, only=kinds, wait=wait, on_event=tell_event)
    _print_check(name, found)
    if any(one.has_failed for one in found.products):
        ctx.exit(1)


def _print_check(name: str, found: PackCheck) -> None:
    """Print a line for each part, and below the table each product that has failed or is slower than cuBLAS."""
    from tsm2_tune.tuner.packs.gains import SLOWER

    console = tables.console()
    here = found.target.identity.name
    tables.print_line(console, f"{here}, kernels of {name}, tuned on {found.tuned_on}: L2 dirty before each sample")
    cells = []
    for (kind, dtype), part in found.parts.items():
        vendor = str(sum(not one.config for one in part.products)) if part.gains else "-"
        cells.append([kind, dtype, *_gain_cells(part.gains), vendor, part.trust or "-"])
    heads = ("kind", "type", "products", "x cuBLAS", "slower", "worst", "left to cuBLAS", "trust")
    tables.print_table(console, tables.columns(*heads), cells)
    tables.print_line(
        console,
        "x cuBLAS: times as fast as cuBLAS; slower: by over 3 %; left to cuBLAS: the module calls cuBLAS, x cuBLAS is"
        " 1; -: not measured",
    )
    tables.print_line(console, _closing(found))
    for one in found.products:
        if one.trouble:
            tables.print_hanging(console, f"{one.problem.text}: {one.trouble}", 2)
        elif one.gain is not None and one.gain < SLOWER:
            times = f"{one.kernel_us:.1f} us, cuBLAS {one.vendor_us:.1f} us: {one.gain:.2f} x"
            tables.print_hanging(console, f"{one.problem.text}, {one.place}: {times}, {one.config}", 2)


def _closing(found: PackCheck) -> str:
    """Return a sentence: how many kernels were timed, and how to tune the parts with "no" or "partly"."""
    if all(one.trust is None for one in found.parts.values()):
        return "nothing was measured: run it again"
    timed = sum(bool(one.config) and one.gain is not None for one in found.products)
    text = f"{timed} kernels timed in {found.seconds:.0f} s"
    doubtful = [part for part, one in found.parts.items() if one.trust in ("no", "partly")]
    if not doubtful:
        return f"{text}: no measured part is slower than cuBLAS"
    kinds, dtypes = (",".join(dict.fromkeys(names)) for names in zip(*doubtful, strict=True))
    return f"{text}; to tune the parts with no or partly: tsm2-tune pack --only {kinds} --dtype {dtypes} -o own.jsonl"
