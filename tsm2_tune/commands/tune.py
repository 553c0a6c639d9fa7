"""`tsm2-tune tune`: find the fastest kernel for each shape. It is the default command of `tsm2-tune`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

import tsm2_tune
from tsm2_tune.api.parse import computable, family_names, problems_of, thresholds_of
from tsm2_tune.commands.errors import Command, ended_by_signals, option
from tsm2_tune.commands.options import (
    cluster_option,
    database_option,
    devices_option,
    family_options,
    full_trials_option,
    gain_option,
    is_given,
    pairs_option,
    retry_option,
    shapes_options,
    strategy_option,
    tuning_options,
    vendor_option,
    wait_option,
)
from tsm2_tune.console.printable import printable, tell
from tsm2_tune.tuner.results.storage.addresses import command_on, shown_name
from tsm2_tune.tuner.runs.blas_threads import one_blas_thread

if TYPE_CHECKING:  # a slow import would delay shell completion
    from tsm2_tune import TuningResult
    from tsm2_tune.console.json_events import EventLines
    from tsm2_tune.console.run_progress import RunProgress
    from tsm2_tune.tuner.runs.events import RunStarted

NO_GPU = (
    "No GPU found. Kernels are emulated on the CPU: this checks correctness; times mean nothing."
    " --device cpu hides this line."
)


@click.command(cls=Command)
@devices_option
@cluster_option
@shapes_options(required=False)
@family_options
@tuning_options
@strategy_option
@gain_option
@full_trials_option
@vendor_option
@pairs_option
@retry_option
@wait_option
@database_option
@option("--json", "as_json", is_flag=True, help="Print events as they happen, each a line of JSON.")
@click.pass_context
def tune(
    ctx: click.Context,
    /,
    spec: str | None,
    cluster: str | None,
    shapes: str | None,
    dtypes: str,
    ops: str,
    layout: str,
    math: str,
    families: str | None,
    guidelines: str | None,
    full_trials: bool,
    no_vendor: bool,
    pairs: bool,
    wait: bool,
    database: str,
    as_json: bool,
    **limits: Any,
) -> None:
    """Find the fastest kernel for each shape.

    \b
    tsm2-tune --device 0 --shapes 20480x16x20480,1e7x8x8 --dtype f32,f64 --budget 60s

    It enumerates kernel configurations, drops those that cannot run on the device or that the guidelines reject,
    generates and compiles CUDA code for the rest, verifies and times each, and stores every trial. To continue an
    interrupted search, run the same command again. `best` shows the fastest kernels, and `export` writes them as a
    Python module.
    """
    if shapes is None:
        raise click.UsageError("nothing to tune: name --shapes, such as --shapes 20480x16x20480")
    names = family_names(families)
    problems = problems_of(shapes, dtypes, ops, layout, math)
    if sys.stdout is not None and sys.stdout.isatty() and not as_json:  # the imports below take seconds
        click.echo(f"tuning {len(problems)} problem{'s'[: len(problems) > 1]} on {_place(spec, cluster)}")
    with one_blas_thread():
        from tsm2_tune.api.devices import targets_of  # slow: import after arguments are checked
    problems = computable(problems, names)
    with ended_by_signals(ctx, database, stderr=as_json):
        thresholds = thresholds_of(guidelines)
        devices = spec if cluster is not None else targets_of(spec)
        is_unasked_host = not (spec or cluster) and targets_of(devices)[0].is_host
        shown = _shown(
            shown_name(database),
            is_unasked_host=is_unasked_host,
            is_cache_asked=is_given(ctx, "cache"),
            pairs=pairs,
            as_json=as_json,
        )
        with shown:
            result = tsm2_tune.tune(
                problems,
                device=devices,
                cluster=cluster,
                db=database,
                family=names,
                guidelines=thresholds,
                full_trials=full_trials,
                vendor=not no_vendor,
                pairs=pairs,
                wait=wait,
                on_event=shown.show,
                **limits,
            )
        shown.end(result)
    _print_incomplete(result, shown_name(database))
    if not result.is_complete:
        ctx.exit(1)


def _place(spec: str | None, cluster: str | None) -> str:
    """Return a text that names the devices to tune on, from --device and --cluster alone."""
    if cluster is not None:
        return f"the cluster {printable(cluster)}"
    return "GPU 0, or this host" if spec is None else f"device {printable(spec)}"


def _shown(
    database: str, *, is_unasked_host: bool, is_cache_asked: bool, pairs: bool, as_json: bool
) -> EventLines | RunProgress:
    """Return the object that prints the run's events: as JSON lines, or as progress in a terminal."""
    from tsm2_tune.console.json_events import EventLines
    from tsm2_tune.console.run_progress import RunProgress, l2_state_text
    from tsm2_tune.console.tables import console

    if as_json:
        if is_unasked_host:
            tell(NO_GPU)
        return EventLines(database)

    def opening(run: RunStarted, name: str) -> Iterator[str]:
        target = run.target
        if is_unasked_host:
            yield NO_GPU
        state = l2_state_text(target, run.options, is_asked=is_cache_asked)
        yield f"{name or 'device'}: {target.identity.name}{state}"

    return RunProgress(console(), database, opening, pairs=pairs)


def _print_incomplete(result: TuningResult, database: str) -> None:
    """Print counts of skipped kernels, problems without a winner, interruptions and unfinished problems, if any."""
    from tsm2_tune.commands.results.quarantine import print_quarantined
    from tsm2_tune.console.run_progress import print_interrupted

    print_quarantined(sum(one.quarantined for one in result.ended), database)
    _print_unsolved(result, database)
    print_interrupted(result.interrupted)
    if result.unfinished:
        count = len(result.unfinished)
        tell(f"{count} problems not finished, because devices failed: run the same command again to continue")


def _print_unsolved(result: TuningResult, database: str) -> None:
    """Print on standard error how many problems have no correct, timed kernel, if any."""
    from tsm2_tune.console import tables

    if not result.unsolved:
        return
    sentence = (
        f"no winner for {len(result.unsolved)} of {len(result.ended)} problems: see `{command_on('show', database)}`"
    )
    if any(one.timed_out for one in result.ended if one.winner is None):
        sentence += "; for timeouts choose smaller shapes or another device, or raise --run-limit, --budget"
    tables.print_line(tables.console(stderr=True), sentence)
