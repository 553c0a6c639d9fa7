"""`tsm2-tune tune`: find the fastest kernel for each shape. It is the default command of `tsm2-tune`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

import tsm2_tune
from tsm2_tune.api.parse import MOST_GAIN, ORDERS, REACH, STRATEGIES, computable
from tsm2_tune.commands.errors import Command, ended_by_signals, option
from tsm2_tune.commands.options import (
    Choice,
    Percent,
    database_option,
    devices_option,
    family_options,
    is_given,
    retry_option,
    shapes_options,
    tuning_options,
    wait_option,
)
from tsm2_tune.console.printable import printable, tell
from tsm2_tune.tuner.results.storage.addresses import command_on, shown_name
from tsm2_tune.tuner.results.trial import Outcome, count_text
from tsm2_tune.tuner.runs.blas_threads import one_blas_thread

if TYPE_CHECKING:  # a slow import would delay shell completion
    from tsm2_tune import TuningResult
    from tsm2_tune.console.json_events import EventLines
    from tsm2_tune.console.run_progress import RunProgress
    from tsm2_tune.generator.problem import Problem
    from tsm2_tune.tuner.runs.events import RunStarted

NO_GPU = (
    "No GPU found. Kernels are emulated on the CPU: this checks correctness; times mean nothing."
    " --device cpu hides this line."
)


@click.command(cls=Command)
@devices_option
@option(
    "--cluster",
    metavar="ADDRESS",
    help="Address of a Dask scheduler, such as tcp://host:8786. Each of its workers tunes on the first GPU that it"
    " sees, or on its CPU if it sees none or with --device cpu.",
)
@shapes_options()
@family_options
@tuning_options
@option(
    "--strategy",
    type=Choice(STRATEGIES),
    default="model",
    show_default=True,
    help="The order in which configurations are tried."
    + "".join(f" {name}: {order}." for name, order in (*ORDERS.items(), ("optuna", "as its sampler suggests"))),
)
@option(
    "--gain",
    type=Percent(MOST_GAIN),
    metavar="PERCENT",
    help="End a problem's search when the expected gain of continuing falls below this, such as 0.5%. Without it, the"
    " search continues until the budget is spent.",
)
@option(
    "--full-trials",
    is_flag=True,
    help=f"On a GPU: verify and time every configuration in full. Without it, a trial ends as {Outcome.BEHIND.value}"
    f" if each of its first launches takes over {100 * REACH - 100:.0f} % longer than the fastest correct kernel.",
)
@option("--no-vendor", is_flag=True, help="Do not time cuBLAS and cuBLASLt beside the fastest kernels.")
@option(
    "--pairs/--no-pairs",
    default=True,
    show_default=True,
    help="After the search, time each winner, and kernels for shapes between the tuned ones, at the other tuned"
    " shapes. This takes time beyond --budget and --max-trials.",
)
@retry_option
@wait_option
@database_option()
@option("--json", "as_json", is_flag=True, help="Print events as they happen, each a line of JSON.")
@click.pass_context
def tune(
    ctx: click.Context,
    /,
    spec: str | None,
    cluster: str | None,
    problems: tuple[Problem, ...],
    no_vendor: bool,
    database: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Find the fastest kernel for each shape.

    \b
    tsm2-tune --device 0 --shapes 20480x16x20480,1e7x8x8 --dtype f32,f64 --budget 60s

    It enumerates kernel configurations, drops those that cannot run on the device or that the guidelines reject,
    generates and compiles CUDA code for the rest, verifies and times each, and stores every trial. To continue an
    interrupted search, run the same command again. `best` shows the fastest kernels, and `export` writes them as a
    Python module.
    """
    if sys.stdout is not None and sys.stdout.isatty() and not as_json:  # the imports below take seconds
        click.echo(f"tuning {count_text(len(problems), 'problem')} on {_place(spec, cluster)}")
    with one_blas_thread():
        from tsm2_tune.api.devices import targets_of  # slow: import after arguments are checked
    problems = computable(problems, options["family"])
    with ended_by_signals(ctx, database, stderr=as_json):
        devices = spec if cluster is not None else targets_of(spec)
        is_unasked_host = not (spec or cluster) and targets_of(devices)[0].is_host
        shown = _json(database, is_unasked_host) if as_json else _progress(ctx, is_unasked_host)
        with shown:
            run: dict[str, Any] = {"device": devices, "cluster": cluster, "db": database, "on_event": shown.show}
            result = tsm2_tune.tune(problems, vendor=not no_vendor, **run, **options)
        shown.end(result)
    _print_incomplete(result, shown_name(database))
    if not result.is_complete:
        ctx.exit(1)


def _place(spec: str | None, cluster: str | None) -> str:
    """Return a text that names the devices to tune on, from --device and --cluster alone."""
    if cluster is not None:
        return f"the cluster {printable(cluster)}"
    return "GPU 0, or this host" if spec is None else f"device {printable(spec)}"


def _json(database: str, is_unasked_host: bool) -> EventLines:
    from tsm2_tune.console.json_events import EventLines

    if is_unasked_host:
        tell(NO_GPU)
    return EventLines(shown_name(database))


def _progress(ctx: click.Context, is_unasked_host: bool) -> RunProgress:
    from tsm2_tune.console.run_notes import l2_state_text
    from tsm2_tune.console.run_progress import RunProgress
    from tsm2_tune.console.tables import console

    def opening(run: RunStarted, name: str) -> Iterator[str]:
        if is_unasked_host:
            yield NO_GPU
        state = l2_state_text(run.target, run.options, is_asked=is_given(ctx, "cache"))
        yield f"{name or 'device'}: {run.target.identity.name}{state}"

    return RunProgress(console(), shown_name(ctx.params["database"]), opening, pairs=ctx.params["pairs"])


def _print_incomplete(result: TuningResult, database: str) -> None:
    """Print counts of skipped kernels, problems without a winner, interruptions and unfinished problems, if any."""
    from tsm2_tune.commands.results.quarantine import print_quarantined
    from tsm2_tune.console import tables
    from tsm2_tune.console.run_notes import print_interrupted

    print_quarantined(sum(one.quarantined for one in result.ended), database)
    if result.unsolved:
        counts = f"no winner for {len(result.unsolved)} of {len(result.ended)} problems"
        sentence = f"{counts}: see `{command_on('show', database)}`"
        if any(one.timed_out for one in result.ended if one.winner is None):
            sentence += "; for timeouts choose smaller shapes or another device, or raise --run-limit, --budget"
        tables.print_line(tables.console(stderr=True), sentence)
    print_interrupted(result.interrupted)
    if result.unfinished:
        count = len(result.unfinished)
        tell(f"{count} problems not finished, because devices failed: run the same command again to continue")
