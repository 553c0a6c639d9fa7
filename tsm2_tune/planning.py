"""The commands that plan and run no kernel: spaces, models, CUDA text, devices."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from itertools import islice
from typing import Any

import click

import tsm2_tune
from tsm2_tune import completion, display, reports
from tsm2_tune.command_options import (
    database_option,
    family_options,
    is_given,
    json_option,
    layout_option,
    math_option,
    planning_device_option,
    shapes_options,
)
from tsm2_tune.errors import InputError, TuneError, nearest_name
from tsm2_tune.generator.config import KernelConfig, family_spelt
from tsm2_tune.generator.families import FAMILIES
from tsm2_tune.generator.families.family import Family
from tsm2_tune.generator.guidelines import Thresholds
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.profiles import PROFILES
from tsm2_tune.generator.render import render
from tsm2_tune.generator.roofline import data_sheet, modelled
from tsm2_tune.generator.space import unfit
from tsm2_tune.generator.spelling import unknown_word, value_spelt, words_of
from tsm2_tune.generator.tunables import declared
from tsm2_tune.options import (
    LARGE,
    LARGE_SQUARE,
    OP_SPELLING,
    check_named,
    dtype_with,
    family_names,
    op_in,
    op_of,
    problems_of,
    thresholds_of,
)
from tsm2_tune.tuner.addresses import shown_name
from tsm2_tune.tuner.audit import audit
from tsm2_tune.tuner.store import Store
from tsm2_tune.tuner.target import default_spec, limits_of, stored_target

NOT_OF_AN_AUDIT = {
    "shapes": "--shapes",
    "dtypes": "--dtype",
    "ops": "--op",
    "layout": "--layout",
    "math": "--math",
    "explain": "--explain",
    "as_lines": "--list",
}


@click.command()
@json_option
def devices(as_json: bool) -> None:
    """List the devices here and the bundled cards."""
    from tsm2_tune.tuner.cuda import cuda_device_count

    found = []
    for spec in [*(str(ordinal) for ordinal in range(cuda_device_count())), "cpu", *PROFILES]:
        try:
            found.append((spec, "bundled" if spec in PROFILES else "here", limits_of(spec)))
        except TuneError as error:
            click.echo(f"device {spec}: {error}", err=True)
    if as_json:
        click.echo(json.dumps([{"device": spec, "kind": kind, **asdict(limits)} for spec, kind, limits in found]))
        return
    reports.print_devices(found, display.console())


@click.command()
@planning_device_option
@shapes_options(required=False)
@family_options
@click.option("--explain", is_flag=True, help="Say what each rule is for.")
@click.option("--list", "as_lines", is_flag=True, help="Print each kept configuration as a line of JSON.")
@click.option(
    "--audit",
    "is_audit",
    is_flag=True,
    help="After a run: which winners each guideline would have dropped and what that costs, and how far the estimates"
    " were from the compiled kernels.",
)
@database_option
@json_option
@click.pass_context
def space(
    ctx: click.Context,
    spec: str | None,
    shapes: str | None,
    dtypes: str,
    ops: str,
    layout: str,
    math: str,
    families: str | None,
    guidelines: str | None,
    explain: bool,
    as_lines: bool,
    is_audit: bool,
    database: str,
    as_json: bool,
) -> None:
    """Show how many configurations there are, and which rule drops how many.

    \b
    tsm2-tune space --device h200 --shapes 20480x16x20480 --explain
    tsm2-tune space --audit --db results.db

    Without --shapes it is the space of a large square product. The cost of a guideline is known only from trials that
    it would have dropped: tune with --guidelines none, then --audit.
    """
    _refuse_unused(ctx, is_audit)
    if is_audit:
        _audit(spec, database, thresholds_of(guidelines), family_names(families), as_json=as_json)
        return
    limits = limits_of(default_spec() if spec is None else spec)
    chosen, names = thresholds_of(guidelines), family_names(families)
    searched = [
        tsm2_tune.plan_space(problem, device=limits, family=names, guidelines=chosen)
        for problem in problems_of(shapes or LARGE_SQUARE, dtypes, ops, layout, math)
    ]
    if as_lines:
        for one in searched:
            for c in one.kept:
                facts = {
                    "problem": one.problem.text,
                    "family": c.config.family,
                    "configuration": c.config.text,
                    "tunables": c.config.tunables,
                    **asdict(c.resources),
                    **asdict(c.occupancy),
                }
                click.echo(json.dumps(facts))
        return
    if as_json:
        click.echo(json.dumps([reports.space_counts(one) for one in searched], indent=2))
        return
    for one in searched:
        reports.print_space(one, display.console(), explain=explain)


def _refuse_unused(ctx: click.Context, is_audit: bool) -> None:
    """UsageError for an option that the command would ignore."""
    if is_audit:
        for name, option in NOT_OF_AN_AUDIT.items():
            if is_given(ctx, name):
                raise click.UsageError(f"--audit is of all that the database has: leave {option} out")
    elif is_given(ctx, "database"):
        raise click.UsageError("--db is for --audit: name that too, or leave --db out")
    elif is_given(ctx, "explain") and (is_given(ctx, "as_lines") or is_given(ctx, "as_json")):
        raise click.UsageError("--explain is of the table that people read: leave it out, or --list and --json")


def _audit(
    spec: str | None, database: str, guidelines: Thresholds, families: tuple[str, ...], *, as_json: bool
) -> None:
    """Audit the database's trials of the device."""
    with Store.open(database, create=False) as store:
        name, limits = stored_target(store.devices(), spec, shown_name(database))
        trials = [trial for trial in store.current(name) if not trial.is_between]
    of_families = [trial for trial in trials if not families or trial.config.family in families]
    limits = replace(limits, name=name)
    found = audit(of_families, limits, guidelines)
    if as_json:
        click.echo(json.dumps(reports.audit_facts(found, limits, shown_name(database)), indent=2))
    else:
        reports.print_audit(found, limits, shown_name(database), display.console())


@click.command()
@planning_device_option
@shapes_options(required=True)
@click.option(
    "--db",
    "database",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Take the rates that the newest run in this database measured on the device, not the data sheet's.",
)
@json_option
def model(
    spec: str | None,
    shapes: str,
    dtypes: str,
    ops: str,
    layout: str,
    math: str,
    database: str | None,
    as_json: bool,
) -> None:
    """Show what bounds each problem on a device, the least time, and what the TSM2 paper's model chooses.

    \b
    tsm2-tune model --device k40c --shapes 20480x16x20480,8192x8192x8192 --dtype f64 --json

    For every problem: the least bytes, the operations, the operations for each byte (arithmetic intensity), and the
    intensity at which arithmetic takes as long as memory (machine balance). For A B in f32, f64, c64 and c128,
    column-major, also t1, t2 and t3 by Algorithm 5, from the data sheet's rates.
    """
    problems = problems_of(shapes, dtypes, ops, layout, math)
    if database is None:
        limits = limits_of(default_spec() if spec is None else spec)
        ceilings, source = data_sheet(limits), reports.data_sheet_text(limits)
    else:
        with Store.open(database, create=False) as store:
            name, limits = stored_target(store.devices(), spec, shown_name(database))
            newest = store.newest_run(name)
        ceilings, source = newest.ceilings, reports.measured_text(newest, shown_name(database))
    found = [modelled(problem, limits, ceilings) for problem in problems]
    if as_json:
        click.echo(json.dumps([reports.model_facts(one, limits, source) for one in found], indent=2))
    else:
        reports.print_model(found, limits, source, display.console())


MOST_LOOKED_AT = 400_000  # configurations, for an error


def _what_is_wrong(family: Family[Any], config: KernelConfig | None, spelling: str) -> str:
    """How configurations are spelt, or which tunable, or value of one, none has."""
    if config is None:
        spelt_like = f"they are spelt like {next(iter(family.configurations())).text}"
        _, has_words, words = spelling.partition(":")
        unknown = unknown_word(family.config_type, words) if has_words else ""
        if not unknown:
            return spelt_like
        near = nearest_name(unknown, words_of(family.config_type))
        return f"{unknown!r} is none of its tunables{f', did you mean {near}' if near else ''}; {spelt_like}"
    every = list(islice(family.configurations(), MOST_LOOKED_AT))
    if len(every) == MOST_LOOKED_AT:  # of a space of millions
        return "its values do not go together; tsm2-tune space --list names all"
    for one in declared(type(config)):
        known = sorted({*one.tunable.late, *(other.tunables[one.name] for other in every)})
        if config.tunables[one.name] not in known:
            name = one.word if one.word == one.name else f"{one.name} in {one.word}="
            return f"{name} is one of {', '.join(value_spelt(one, value) for value in known)}"
    return "each of its values is right, but not with the others; tsm2-tune space --list names all"


@click.command()
@click.argument("configuration", shell_complete=completion.configurations)
@click.option("--dtype", "dtype", default="f32", show_default=True, help="Element type.")
@math_option
@click.option("--op", "op", default="nn", show_default=True, help=f"How the matrices lie. {OP_SPELLING}")
@layout_option
def source(configuration: str, dtype: str, math: str, op: str, layout: str) -> None:
    """Print the CUDA text of one CONFIGURATION, spelt as `space --list` and `best` spell it.

    \b
    tsm2-tune source tsm2:version=v3,threads=128,columns=16,prefetch=4 --dtype f64
    """
    family_name = family_spelt(configuration)
    check_named("family", family_name, list(FAMILIES))
    family = FAMILIES[family_name]
    if "*" in configuration:
        raise InputError(
            f"configuration {configuration!r}: * stands for any launch number, and source prints the text of one"
            " configuration: put a number in its place"
        )
    name = dtype_with(math, dtype)
    op = op_in(layout, op_of(op, name))
    problems = [Problem(size, size, size, name, op) for size in (1, LARGE)]  # one text is for all shapes
    problem = next(filter(family.supports, problems), None)
    if problem is None:
        raise InputError(
            f"{family.name} has no kernel for {name} and op {op}: choose another --dtype, --math or --op"
            + ("" if name in family.dtypes else f"; it computes {', '.join(family.dtypes)}")
        )
    config = family.config_type.parse(configuration)
    if config is None or not family.has(config, problem):
        raise InputError(
            f"{family.name} has no configuration {configuration!r}: {_what_is_wrong(family, config, configuration)}"
        )
    why_not = unfit(family, config, problem)
    if why_not is not None:
        raise InputError(
            f"{config.text} has no kernel for {problem.dtype_name} and op {op}, as {why_not}:"
            " choose another configuration, --dtype, --math or --op"
        )
    click.echo(render(problem, config).text, nl=False)
