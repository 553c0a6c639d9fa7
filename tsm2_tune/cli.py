"""The command line: parse, call one function, print."""

from __future__ import annotations

import json
import os
from dataclasses import asdict

import click
from rich.console import Console

from tsm2_tune import __version__, display, planning
from tsm2_tune.errors import InputError
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.rules import Thresholds
from tsm2_tune.options import (
    Seconds,
    computable,
    database_option,
    family_names,
    family_options,
    is_given,
    json_option,
    problems_of,
    shapes_options,
    thresholds_of,
)
from tsm2_tune.tuner import job
from tsm2_tune.tuner.store import Store
from tsm2_tune.tuner.target import HOST, default_spec, find_target, limits_of
from tsm2_tune.tuner.tune import Options, Tuner
from tsm2_tune.usage import Group

FORMATS = ("module", "csv", "json", "markdown", "latex", "header")
DEFAULT_BUDGET_SECONDS = 120.0
MOST_BUDGET_SECONDS = 1e9  # 30 years
MOST_LIMIT_SECONDS = 86400.0  # a day
MOST_TRIAL = 2**63 - 1  # SQLite's largest
INTERRUPTED = 130  # exit status after Ctrl-C, as shells have it


@click.group(cls=Group, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tsm2-tune")
@click.option("--device", "spec", help="CUDA ordinal, or cpu. [default: GPU 0 if there is one, else cpu]")
@shapes_options(required=False)
@family_options
@database_option
@click.option(
    "--budget",
    type=Seconds(min=0, max=MOST_BUDGET_SECONDS),
    default=DEFAULT_BUDGET_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="Time for each problem, that of earlier runs included; 0 is no limit.",
)
@click.option(
    "--max-trials",
    type=click.IntRange(min=1),
    metavar="N",
    help="Configurations for each problem, those of earlier runs included.",
)
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, help="Of inputs and order.")
@click.option(
    "--compile-limit",
    type=Seconds(min=0, min_open=True, max=MOST_LIMIT_SECONDS),
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    help="For compiling one configuration.",
)
@click.option(
    "--run-limit",
    type=Seconds(min=0, min_open=True, max=MOST_LIMIT_SECONDS),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="For each stage of a trial: verifying, timing.",
)
@click.pass_context
def main(
    ctx: click.Context,
    spec: str | None,
    shapes: str | None,
    dtypes: str,
    ops: str,
    layout: str,
    math: str,
    families: str | None,
    guidelines: str | None,
    database: str,
    budget: float,
    max_trials: int | None,
    seed: int,
    compile_limit: float,
    run_limit: float,
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
    options = Options(
        seed=seed,
        max_trials=max_trials,
        budget_seconds=budget or None,
        compile_limit_seconds=compile_limit,
        run_limit_seconds=run_limit,
    )
    names = family_names(families)
    tune(
        ctx,
        spec,
        computable(problems_of(shapes, dtypes, ops, layout, math), names),
        options,
        database,
        thresholds_of(guidelines),
        names,
    )


def tune(
    ctx: click.Context,
    spec: str | None,
    problems: tuple[Problem, ...],
    options: Options,
    database: str,
    guidelines: Thresholds,
    families: tuple[str, ...],
) -> None:
    """The main job, until it ends or Ctrl-C ends it."""
    try:
        _tune(ctx, spec, problems, options, database, guidelines, families)
    except KeyboardInterrupt:
        if os.path.exists(database):
            click.echo(f"stopped; every trial that ended is in {database}: the same command goes on from there")
        else:
            click.echo(f"stopped; no trial had ended, and {database} is not made yet: the same command starts again")
        ctx.exit(INTERRUPTED)


def _tune(
    ctx: click.Context,
    spec: str | None,
    problems: tuple[Problem, ...],
    options: Options,
    database: str,
    guidelines: Thresholds,
    families: tuple[str, ...],
) -> None:
    """The main job, with its progress on the terminal."""
    console = Console()
    target = find_target(default_spec() if spec is None else spec)
    searched = job.spaces(problems, target, guidelines=guidelines, families=families)
    unsolved = timed_out = 0
    with Tuner(target, options) as tuner, Store.open(database, create=True) as store:
        display.print_line(console, f"device: {target.identity.name}")
        with display.Display(console, options, len(searched)) as shown:
            for event in job.run(searched, tuner, store):
                shown.show(event)
                if isinstance(event, job.ProblemEnded) and event.winner is None:
                    unsolved += 1
                    timed_out += event.timed_out
        asked = set(problems)
        winners = [row for row in store.best(device=target.identity.name) if row.problem in asked]
        display.winners_table(winners, console)
    if unsolved:
        sentence = f"no winner for {unsolved} of {len(searched)} problems: see `tsm2-tune show --db {database}`"
        if timed_out:
            sentence += "; for what timed out choose smaller shapes or another device, or raise --run-limit, --budget"
        click.echo(sentence, err=True)
        ctx.exit(1)


for command in (planning.devices, planning.space, planning.model, planning.source):
    main.add_command(command)


stored_device_option = click.option(
    "--device", "device", help="Only this device: cpu, a CUDA ordinal, or the name that is stored."
)


def stored_device(store: Store, device: str | None) -> str | None:
    """The name under which the store has the device; InputError where it has none."""
    if device is None:
        return None
    name = limits_of(device).name if device == HOST or device.isdecimal() else device
    if name not in store.devices():
        known = ", ".join(map(repr, store.devices())) or "none"
        raise InputError(f"no trial of the device {name!r} in {store.path}: it has {known}")
    return name


@main.command()
@database_option
@stored_device_option
@json_option
def best(database: str, device: str | None, as_json: bool) -> None:
    """Show the winners in the database."""
    with Store.open(database, create=False) as store:
        rows = store.best(device=stored_device(store, device))
    if as_json:
        click.echo(json.dumps([{**asdict(row), "parameters": row.tunables} for row in rows], indent=2))
    else:
        display.winners_table(rows, Console())


@main.command()
@database_option
@stored_device_option
@click.option("--format", "form", type=click.Choice(FORMATS), required=True, help="What to write.")
@click.option("--output", required=True, metavar="PATH", help="The file to write; - is standard output.")
def export(database: str, device: str | None, form: str, output: str) -> None:
    """Write the winners as an importable module, a table or a C header.

    \b
    tsm2-tune export --format module --output best_kernels.py
    """
    from tsm2_tune.tuner import export as exports

    if output != "-":
        exports.refuse_database(output, database)
    with Store.open(database, create=False) as store:
        text = exports.export(store, form, device=stored_device(store, device))
    if output == "-":
        click.echo(text, nl=False)
    else:
        exports.write(text, output)


@main.command()
@click.argument("trial", type=click.IntRange(1, MOST_TRIAL), required=False)
@database_option
@json_option
def show(trial: int | None, database: str, as_json: bool) -> None:
    """Show one TRIAL in full, or list all trials."""
    with Store.open(database, create=False) as store:
        if trial is None:
            display.trials_table(store.listing(), Console(), as_json=as_json)
        else:
            display.trial_in_full(store.trial(trial), Console(), as_json=as_json)
