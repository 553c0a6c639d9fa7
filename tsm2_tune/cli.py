"""The command line: parse, call one function, print."""

from __future__ import annotations

import json
import os
import shlex
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import click

from tsm2_tune import __version__, caching, display, planning, programs, reports
from tsm2_tune.errors import InputError
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.rules import Thresholds
from tsm2_tune.options import (
    DEFAULT_DATABASE,
    LADDER_DATABASE,
    computable,
    database_option,
    database_option_of,
    device_option,
    family_names,
    family_options,
    is_given,
    json_option,
    pairs_option,
    problems_of,
    shapes_options,
    thresholds_of,
    tuning_options,
    vendor_option,
    wait_option,
    within_options,
)
from tsm2_tune.selection import Selection, selection_options
from tsm2_tune.trials import TrialNumber, forget, retry_option
from tsm2_tune.tuner import job
from tsm2_tune.tuner import ladder as steps
from tsm2_tune.tuner.locks import device_lock
from tsm2_tune.tuner.stopping import stoppable
from tsm2_tune.tuner.store import Store
from tsm2_tune.tuner.stored import BestRow
from tsm2_tune.tuner.target import Target, default_spec, find_target
from tsm2_tune.tuner.trial import Outcome, in_a_line
from tsm2_tune.tuner.tune import FinalFailure, Options, Tuner
from tsm2_tune.usage import Group

FORMATS = ("module", "csv", "json", "markdown", "latex", "library")
NO_GPU = (
    "no CUDA driver answers: the host emulates the kernels, which is for smaller shapes than a GPU's;"
    " --device cpu leaves this sentence out"
)
OF_A_SIGNAL = 128  # and its number: the exit status after it, as shells have it


@click.group(cls=Group, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tsm2-tune")
@device_option
@shapes_options(required=False)
@family_options
@tuning_options
@vendor_option
@pairs_option
@retry_option
@wait_option
@database_option
@click.pass_context
def main(
    ctx: click.Context,
    /,
    spec: str | None,
    shapes: str | None,
    dtypes: str,
    ops: str,
    layout: str,
    math: str,
    families: str | None,
    guidelines: str | None,
    no_vendor: bool,
    pairs: bool,
    wait: bool,
    database: str,
    **patience: Any,
) -> None:
    """Tune tall-and-skinny matrix multiplication for a GPU, or for this host.

    \b
    tsm2-tune --device 0 --shapes 20480x16x20480,1e7x8x8 --dtype f32,f64

    enumerates kernel configurations, drops those that the device or the guidelines rule out, generates and
    compiles CUDA for the rest, verifies and times each, and stores every trial. The same command again goes on
    where the last one stopped. Then `best` shows the winners and `export` writes them as an importable module.
    """
    if ctx.invoked_subcommand is not None:
        given = [name for name in ctx.params if is_given(ctx, name)]
        if given:
            raise click.UsageError(f"options of tuning before {ctx.invoked_subcommand!r}: put them behind it")
        return
    if shapes is None:
        raise click.UsageError("nothing to tune: name --shapes, such as --shapes 20480x16x20480; --help says more")
    names = family_names(families)
    problems = computable(problems_of(shapes, dtypes, ops, layout, math), names)
    with _ended_by_signals(ctx, database):
        options = Options(vendor=not no_vendor, **patience)
        _tune(ctx, spec, problems, options, database, thresholds_of(guidelines), names, pairs, wait=wait)


@contextmanager
def _ended_by_signals(ctx: click.Context, database: str) -> Iterator[None]:
    """Ctrl-C, SIGTERM or SIGHUP ends what tunes into the database with a sentence."""
    try:
        with stoppable():
            yield
    except KeyboardInterrupt as stop:
        if os.path.exists(database):
            text = f"stopped; every trial that ended is in {database}: the same command goes on from there"
        else:
            text = f"stopped; no trial had ended, and {database} is not made yet: the same command starts again"
        with suppress(OSError):  # the terminal may be what is gone
            display.print_line(display.console(), text)
        ctx.exit(OF_A_SIGNAL + getattr(stop, "number", signal.SIGINT))


def _tune(
    ctx: click.Context,
    spec: str | None,
    problems: tuple[Problem, ...],
    options: Options,
    database: str,
    guidelines: Thresholds,
    families: tuple[str, ...],
    pairs: bool,
    *,
    wait: bool,
) -> None:
    """The main job, until it ends, with its progress on the terminal."""
    from tsm2_tune.crossed import cross

    console = display.console()
    target = find_target(default_spec() if spec is None else spec)
    searched = job.spaces(problems, target, guidelines=guidelines, families=families)
    tally = _Tally()
    with (
        device_lock(target, _told if wait else None),
        Tuner(target, options) as tuner,
        Store.open(database, create=True) as store,
    ):
        display.print_line(console, f"device: {target.identity.name}{_of_state(ctx, target, options)}")
        if spec is None and target.is_host:
            display.print_line(console, NO_GPU)
        with display.Display(console, options, len(searched), tuner.phases) as shown:
            for event in job.run(searched, tuner, store):
                shown.show(event)
                tally.count(event)
        asked = frozenset(problems)
        if pairs:
            tally.interrupted += cross(asked, tuner, store, families, console)
        stored = store.best(device=target.identity.name, cache=tuner.cache)
        winners = [row for row in stored if row.problem in asked]
        display.winners_table(winners, console)
    if winners:
        display.print_line(console, _next_step(database, is_host=target.is_host))
    if tally.unsolved:
        sentence = f"no winner for {tally.unsolved} of {len(searched)} problems: see `tsm2-tune show --db {database}`"
        if tally.timed_out:
            sentence += "; for what timed out choose smaller shapes or another device, or raise --run-limit, --budget"
        display.print_line(display.console(stderr=True), sentence)
    _tell_interrupted(tally)
    if tally.unsolved or tally.interrupted:
        ctx.exit(1)


def _of_state(ctx: click.Context, target: Target, options: Options) -> str:
    """In which state of the L2 trials are timed; of the host only where one was asked for that it does not have."""
    cache = target.cache(options.cache)
    if not target.is_host:
        return f", timed with the L2 {cache}"
    if is_given(ctx, "cache") and options.cache is not cache:
        return f"; --cache {options.cache} has no effect here: it is of a GPU's L2, which the host does not emulate"
    return ""


def _next_step(database: str, *, is_host: bool) -> str:
    """What can be done with the winners, and what their times are."""
    of_database = "" if database == DEFAULT_DATABASE else f" --db {shlex.quote(database)}"
    command = f"tsm2-tune export{of_database} --format module --output best_kernels.py"
    times = "times are of kernels that this host emulates, not of a GPU's; " if is_host else ""
    return f"{times}next: `{command}` writes the winners as a module to import"


@dataclass(slots=True)
class _Tally:
    """What a run has not reached."""

    unsolved: int = 0  # problems without a winner
    timed_out: int = 0  # of their trials
    interrupted: int = 0  # trials and finals, by the machine

    def count(self, event: job.Event) -> None:
        """Add what the event tells."""
        if isinstance(event, job.ProblemEnded):
            self.interrupted += event.interrupted
            if event.winner is None:
                self.unsolved += 1
                self.timed_out += event.timed_out
        elif isinstance(event, FinalFailure):
            self.interrupted += event.interrupted
        elif isinstance(event, job.WinnerVerified):
            self.interrupted += event.outcome is Outcome.INTERRUPTED


def _told(sentence: str) -> None:
    click.echo(sentence, err=True)


def _tell_interrupted(tally: _Tally) -> None:
    """Say what the machine kept from being judged: a winner may be missing among it."""
    if tally.interrupted:
        click.echo(
            f"{tally.interrupted} interrupted by the machine, not by their kernels, and not judged:"
            " the same command tries them again",
            err=True,
        )


@main.command()
@device_option
@shapes_options(required=True)
@tuning_options
@retry_option
@wait_option
@database_option_of(LADDER_DATABASE)
@json_option
@click.pass_context
def ladder(
    ctx: click.Context,
    /,
    spec: str | None,
    shapes: str,
    dtypes: str,
    ops: str,
    layout: str,
    math: str,
    wait: bool,
    database: str,
    as_json: bool,
    **patience: Any,
) -> None:
    """Show what each step of a six-step GEMM buys.

    \b
    tsm2-tune ladder --device 0 --shapes 1024x1024x1024

    tunes, verifies and times the steps as any kernel is: naive, coalesced, tiled, coarsened in one dimension and in
    two, with vector loads. Beside them is what the article reports that they are from.
    """
    problems = problems_of(shapes, dtypes, ops, layout, math)
    tally = _Tally()
    with _ended_by_signals(ctx, database):
        console, options = display.console(stderr=as_json), Options(**patience)
        target = find_target(default_spec() if spec is None else spec)
        searched = steps.spaces(problems, target)
        with (
            device_lock(target, _told if wait else None),
            Tuner(target, options) as tuner,
            Store.open(database, create=True) as store,
        ):
            with display.Display(console, options, len(searched), tuner.phases) as shown:
                for event in steps.climb(searched, tuner, store):
                    shown.show(event)
                    tally.count(event)
            found = {problem: steps.rungs(problem, target, store, tuner.cache) for problem in problems}
    if as_json:
        click.echo(json.dumps([steps.facts(problem, target, rungs) for problem, rungs in found.items()], indent=2))
    else:
        for problem, rungs in found.items():
            device = target.identity.name + _of_state(ctx, target, options)
            reports.print_ladder(problem, device, rungs, console)
    unsolved = any(rung.best is None for rungs in found.values() for rung in rungs)
    if unsolved:
        untried = any(not rung.tried for rungs in found.values() for rung in rungs)
        more = "raise --budget or --max-trials, or choose a smaller shape" if untried else "raise its limits"
        sentence = f"some steps have no time: see `tsm2-tune show --db {database}`, or {more}"
        display.print_line(display.console(stderr=True), sentence)
    _tell_interrupted(tally)
    if unsolved or tally.interrupted:
        ctx.exit(1)


COMMANDS = (
    planning.devices,
    planning.space,
    planning.model,
    planning.source,
    caching.cache,
    forget,
    programs.run,
    programs.record,
)
for command in COMMANDS:
    main.add_command(command)


@main.command()
@database_option
@selection_options
@json_option
def best(database: str, selection: Selection, as_json: bool) -> None:
    """Show the winners in the database."""
    with Store.open(database, create=False) as store:
        device = selection.device_in(store)
        every, of_state = store.best(device=device), store.best(device=device, cache=selection.cache)
    rows = [row for row in of_state if row.problem in selection]
    _refuse_nothing("winner", len(every), len(rows), selection, database)
    if as_json:
        click.echo(json.dumps([{**asdict(row), "parameters": row.tunables} for row in rows], indent=2))
    else:
        display.winners_table(rows, display.console())


def _refuse_nothing(what: str, stored: int, found: int, selection: Selection, database: str) -> None:
    """InputError where there are some, and none was asked for."""
    if (selection.is_of_problems or selection.cache is not None) and stored and not found:
        raise InputError(
            f"none of {stored} {what}s in {database} is of what was asked for: leave out --shapes, --dtype, --op or"
            " --cache"
        )


def _tell(sentence: str) -> None:
    click.echo(in_a_line(sentence), err=True)


@main.command()
@database_option
@selection_options
@click.option("--format", "form", type=click.Choice(FORMATS), required=True, help="What to write.")
@click.option("--output", required=True, metavar="PATH", help="The file to write; - is standard output.")
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
    selection: Selection,
    form: str,
    output: str,
    binaries: bool,
    launcher: bool,
    between: bool | None,
    within: float | None,
    no_measure: bool,
    wait: bool,
) -> None:
    """Write the winners as an importable module, a C library or a table.

    \b
    tsm2-tune export --format module --output best_kernels.py
    tsm2-tune export --format module --launcher --output best_kernels.py
    tsm2-tune export --format library --output libtsm2.so
    tsm2-tune export --within 3% --format module --output best_kernels.py
    """
    from tsm2_tune.fewest import Fewest
    from tsm2_tune.tuner import export as exports

    if form == "library" and not binaries:
        raise click.UsageError("--no-binaries is of a module: a library is nothing but binaries")
    if within is None and (no_measure or wait):
        raise click.UsageError("--no-measure and --wait are of --within: nothing is measured without it")
    if launcher and form != "module":
        raise click.UsageError(f"--launcher is of a module: leave it out with --format {form}")
    if between and within is not None:
        raise click.UsageError("--between adds kernels, and --within takes the fewest: name one of them")
    if between and form not in ("module", "library"):
        raise click.UsageError(f"--between is of a module or a library: leave it out with --format {form}")
    if output != "-":
        exports.refuse_database(output, database)
    ended = nullcontext() if within is None else _ended_by_signals(ctx, database)
    with ended, Store.open(database, create=False) as store:
        among: Callable[[Sequence[BestRow]], Sequence[BestRow]] = list
        if within is not None:
            console = display.console(stderr=output == "-")
            options = Options(vendor=True, budget_seconds=None, late=False)
            among = Fewest(store, within, options, not no_measure, console, _told if wait else None)
        elif between is not False and form in ("module", "library"):
            among = partial(exports.with_between, store, _tell)
        which: dict[str, Any] = {
            "device": selection.device_in(store),
            "chosen": selection.__contains__,
            "cache": selection.cache,
            "among": among,
        }
        if form == "library":
            exports.export_library(store, output, tell=_tell, **which)
            _tell(f"wrote {', '.join(output.removesuffix('.so') + one for one in exports.LIBRARY_SUFFIXES)}")
            return
        text = exports.export(store, form, binaries=binaries, launcher=launcher, tell=_tell, **which)
    if output == "-":
        click.echo(text.encode(), nl=False)  # as files are, whatever a terminal has
    else:
        exports.write(text, output)
        _tell(exports.written(form, output))


@main.command()
@click.argument("trial", type=TrialNumber(), required=False)
@database_option
@selection_options
@json_option
def show(trial: int | None, database: str, selection: Selection, as_json: bool) -> None:
    """Show one TRIAL in full, or list all trials."""
    of_list = selection.device is not None or selection.cache is not None or selection.is_of_problems
    if trial is not None and of_list:
        raise click.UsageError(
            "--device, --shapes, --dtype, --op and --cache are of the list: leave them or TRIAL out"
        )
    with Store.open(database, create=False) as store:
        if trial is not None:
            display.trial_in_full(store.trial(trial), display.console(), as_json=as_json)
            return
        device = selection.device_in(store)
        every = [line for line in store.listing() if device is None or line.device == device]
        every = [line for line in every if selection.cache is None or line.cache == selection.cache]
    lines = [line for line in every if not selection.is_of_problems or Problem.parse(line.problem) in selection]
    _refuse_nothing("trial", len(every), len(lines), selection, database)
    display.trials_table(lines, display.console(), as_json=as_json)
