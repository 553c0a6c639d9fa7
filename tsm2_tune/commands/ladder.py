"""`tsm2-tune ladder`: time six GEMM kernels, from a naive one to an optimized one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from tsm2_tune.api.parse import LADDER_DATABASE
from tsm2_tune.commands.errors import Command, ended_by_signals
from tsm2_tune.commands.options import (
    database_option,
    device_option,
    is_given,
    json_option,
    retry_option,
    shapes_options,
    tuning_options,
    wait_option,
)
from tsm2_tune.console import tables
from tsm2_tune.console.printable import print_json, tell
from tsm2_tune.tuner.results.storage.addresses import command_on
from tsm2_tune.tuner.runs.blas_threads import one_blas_thread

if TYPE_CHECKING:
    from tsm2_tune.generator.problem import Problem
    from tsm2_tune.tuner.search.ladder import Rung


@click.command(cls=Command)
@device_option
@shapes_options()
@tuning_options
@retry_option
@wait_option
@database_option(LADDER_DATABASE)
@json_option
@click.pass_context
def ladder(
    ctx: click.Context,
    /,
    spec: str | None,
    problems: tuple[Problem, ...],
    wait: bool,
    database: str,
    as_json: bool,
    **limits: Any,
) -> None:
    """Show the speedup of each step of a six-step GEMM.

    \b
    tsm2-tune ladder --device 0 --shapes 1024x1024x1024

    It tunes, verifies and times each step: naive, coalesced, tiled, coarsened in one dimension, coarsened in two, and
    with vector loads. The table also shows published rates of these steps.
    """
    from tsm2_tune.console import plan_tables  # slow: import after arguments are checked

    with one_blas_thread():
        from tsm2_tune.api.tune import options_of
    from tsm2_tune.console.run_notes import l2_state_text, print_interrupted
    from tsm2_tune.console.run_progress import RunProgress
    from tsm2_tune.tuner.device.lock import device_lock
    from tsm2_tune.tuner.device.target import default_spec, find_target
    from tsm2_tune.tuner.results.store import Store
    from tsm2_tune.tuner.runs.events import RunStarted, is_interruption
    from tsm2_tune.tuner.search import ladder as steps
    from tsm2_tune.tuner.search.loop import Tuner

    interrupted = 0
    with ended_by_signals(ctx, database, stderr=as_json):
        console, options = tables.console(stderr=as_json), options_of(**limits)
        target = find_target(default_spec() if spec is None else spec)
        searched = steps.spaces(problems, target)
        with (
            device_lock(target, tell if wait else None),
            Tuner(target, options) as tuner,
            Store.open(database, create=True) as store,
        ):
            with RunProgress(console) as shown:
                shown.show(RunStarted(target, searched.problems, options, tuner.phases))
                for event in steps.climb(searched, tuner, store):
                    shown.show(event)
                    interrupted += is_interruption(event)
            found = {problem: steps.rungs(problem, target, store, tuner.cache) for problem in problems}
    if as_json:
        print_json([steps.facts(problem, target, rungs) for problem, rungs in found.items()])
    else:
        for problem, rungs in found.items():
            device = target.identity.name + l2_state_text(target, options, is_asked=is_given(ctx, "cache"))
            plan_tables.print_ladder(problem, device, rungs, console)
    unsolved = [rung for rungs in found.values() for rung in rungs if rung.best is None]
    if unsolved:
        _print_unsolved(unsolved, database)
    print_interrupted(interrupted)
    if unsolved or interrupted:
        ctx.exit(1)


def _print_unsolved(unsolved: Sequence[Rung], database: str) -> None:
    is_one_untried = any(not rung.tried for rung in unsolved)
    more = "raise --budget or --max-trials, or choose a smaller shape" if is_one_untried else "raise its limits"
    sentence = f"some steps have no time: see `{command_on('show', database)}`, or {more}"
    tables.print_line(tables.console(stderr=True), sentence)
