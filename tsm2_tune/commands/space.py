"""`tsm2-tune space`: count configurations, list families, audit guidelines."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import click

import tsm2_tune
from tsm2_tune.api.parse import LARGE_SQUARE
from tsm2_tune.commands.errors import Command, option
from tsm2_tune.commands.options import (
    database_option,
    family_options,
    is_given,
    json_option,
    planning_device_option,
    shapes_options,
)
from tsm2_tune.console import tables
from tsm2_tune.console.printable import print_json, tell
from tsm2_tune.tuner.results.storage.addresses import shown_name

if TYPE_CHECKING:
    from tsm2_tune.generator.problem import Problem
    from tsm2_tune.generator.space.guidelines import Thresholds
    from tsm2_tune.generator.space.space import SearchSpace

NOT_OF_AN_AUDIT = {
    "shapes": "--shapes",
    "items": "shapes",
    "dtypes": "--dtype",
    "ops": "--op",
    "layout": "--layout",
    "math": "--math",
    "explain": "--explain",
    "as_lines": "--list",
}


@click.command(cls=Command)
@planning_device_option
@shapes_options(default=LARGE_SQUARE)
@family_options
@option("--families", "is_of_families", is_flag=True, help="List the kernel families and what each is for.")
@option("--explain", is_flag=True, help="Print the reason of each rule, and the rules that drop nothing.")
@option("--list", "as_lines", is_flag=True, help="Print each kept configuration as a line of JSON.")
@option(
    "--audit",
    "is_audit",
    is_flag=True,
    help="After a run: which winners each guideline would have dropped, what that would have cost, and how far"
    " estimates of registers and shared memory were from the compiled kernels.",
)
@database_option(reads=True)
@json_option
@click.pass_context
def space(
    ctx: click.Context,
    spec: str | None,
    problems: tuple[Problem, ...],
    family: tuple[str, ...],
    guidelines: Thresholds,
    explain: bool,
    as_lines: bool,
    is_audit: bool,
    is_of_families: bool,
    database: str,
    as_json: bool,
) -> None:
    """Count configurations, and what each rule drops.

    \b
    tsm2-tune space --families
    tsm2-tune space --device h200 --shapes 20480x16x20480 --explain
    tsm2-tune space --audit --db results.db

    Without --shapes, it counts the configurations for a large square product. Guidelines are rules that drop
    configurations which are probably slow. --audit shows how much faster the dropped ones would have been; it needs
    trials of them, so tune with --guidelines none first. The exit status is 1 if no configuration is left of a
    problem.
    """
    _refuse_unused(ctx, is_audit, is_of_families)
    if is_of_families:
        _print_families(as_json=as_json)
        return
    if is_audit:
        _audit(spec, database, guidelines, family, as_json=as_json)
        return
    from tsm2_tune.console import plan_tables  # slow: import after arguments are checked
    from tsm2_tune.tuner.device.target import default_spec, limits_of

    limits = limits_of(default_spec() if spec is None else spec)
    searched = [
        tsm2_tune.plan_space(problem, device=limits, family=family, guidelines=guidelines) for problem in problems
    ]
    if as_lines:
        for one in searched:
            _print_kept(one)
    elif as_json:
        print_json([plan_tables.space_counts(one) for one in searched])
    else:
        for one in searched:
            plan_tables.print_space(one, tables.console(), explain=explain)
        if not (is_given(ctx, "shapes") or is_given(ctx, "items")):
            tell(f"no shape is named: this is {LARGE_SQUARE}; for another: tsm2-tune space 20480x16x20480")
    if not all(one.kept for one in searched):
        ctx.exit(1)


def _print_kept(searched: SearchSpace) -> None:
    """Print one line of JSON for each configuration that no rule dropped."""
    for one in searched.kept:
        facts = {
            "problem": searched.problem.text,
            "family": one.config.family,
            "configuration": one.config.text,
            "tunables": one.config.tunables,
            **asdict(one.resources),
            **asdict(one.occupancy),
        }
        click.echo(json.dumps(facts))


def _print_families(*, as_json: bool) -> None:
    from tsm2_tune.generator.families import FAMILIES

    if as_json:
        print_json({name: family.summary for name, family in FAMILIES.items()})
        return
    cells = [
        (name, "only by name" if one.only_by_name else "", ", ".join(one.dtypes), one.summary)
        for name, one in FAMILIES.items()
    ]
    tables.print_table(tables.console(), tables.columns("family", "searched", "types", "what it does"), cells)


def _refuse_unused(ctx: click.Context, is_audit: bool, is_of_families: bool) -> None:
    """Raise UsageError if an option has no effect together with --families, --audit or neither."""
    if is_of_families:
        others = [name for name in ctx.params if name not in ("is_of_families", "as_json") and is_given(ctx, name)]
        if others:
            raise click.UsageError("--families lists all of them: leave the other options out")
    elif is_audit:
        for name, option in NOT_OF_AN_AUDIT.items():
            if is_given(ctx, name):
                raise click.UsageError(f"--audit covers all trials of the database: leave {option} out")
    elif is_given(ctx, "database"):
        raise click.UsageError("--db is for --audit: name --audit too, or leave --db out")
    elif is_given(ctx, "explain") and (is_given(ctx, "as_lines") or is_given(ctx, "as_json")):
        raise click.UsageError("--explain extends the table: leave it out, or --list and --json")


def _audit(
    spec: str | None, database: str, guidelines: Thresholds, families: tuple[str, ...], *, as_json: bool
) -> None:
    """Print which of a device's fastest stored kernels the guidelines would have dropped, and at what cost."""
    from tsm2_tune.console import audit_tables
    from tsm2_tune.tuner.device.target import stored_target
    from tsm2_tune.tuner.results.store import Store
    from tsm2_tune.tuner.search.audit import audit

    with Store.open(database, create=False) as store:
        name, limits = stored_target(store.devices(), spec, shown_name(database))
        trials = [trial for trial in store.current(name) if not trial.is_between]
    of_families = [trial for trial in trials if not families or trial.config.family in families]
    limits = replace(limits, name=name)
    found = audit(of_families, limits, guidelines)
    if as_json:
        print_json(audit_tables.audit_facts(found, limits, shown_name(database)))
    else:
        audit_tables.print_audit(found, limits, shown_name(database), tables.console())
