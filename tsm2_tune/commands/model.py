"""`tsm2-tune model`: print the roofline model's least time of each problem."""

from __future__ import annotations

import click

from tsm2_tune.commands.errors import Command, option
from tsm2_tune.commands.options import json_option, planning_device_option, shapes_options
from tsm2_tune.console import tables
from tsm2_tune.console.printable import print_json
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results.storage.addresses import shown_name


@click.command(cls=Command)
@planning_device_option
@shapes_options()
@option(
    "--db",
    "database",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Use the rates that the newest run in this database measured on the device, not the data sheet's.",
)
@json_option
def model(spec: str | None, problems: tuple[Problem, ...], database: str | None, as_json: bool) -> None:
    """Show what bounds each problem, and its least time.

    \b
    tsm2-tune model --device h100 --shapes 20480x16x20480
    tsm2-tune model --device k40c --shapes 20480x16x20480,8192x8192x8192 --dtype f64 --json

    For each problem: the least bytes to move, the floating-point operations, their ratio (arithmetic intensity), the
    device's ratio of both rates (machine balance), whether memory or arithmetic is the bound, and the least time. For
    column-major A B in f32, f64, c64 and c128, also t1, t2 and t3 by Algorithm 5 of the TSM2 paper. Rates are those
    of the data sheet. Without a GPU, name a card with --device.
    """
    from tsm2_tune.console import plan_tables  # slow: import after arguments are checked
    from tsm2_tune.generator.device.cards import PROFILES
    from tsm2_tune.generator.device.roofline import data_sheet, modelled
    from tsm2_tune.tuner.device.target import HOST, default_spec, limits_of, stored_target

    if database is None:
        device = default_spec() if spec is None else spec
        if spec is None and device == HOST:
            raise click.UsageError(f"no GPU here: name a card with --device ({', '.join(PROFILES)}), or cpu")
        limits = limits_of(device)
        ceilings, source = data_sheet(limits), plan_tables.data_sheet_text(limits)
    else:
        from tsm2_tune.tuner.results.store import Store

        with Store.open(database, create=False) as store:
            name, limits = stored_target(store.devices(), spec, shown_name(database))
            newest = store.newest_run(name)
        ceilings, source = newest.ceilings, plan_tables.measured_text(newest, shown_name(database))
    found = [modelled(problem, limits, ceilings) for problem in problems]
    if as_json:
        print_json([plan_tables.model_facts(one, limits, source) for one in found])
    else:
        plan_tables.print_model(found, limits, source, tables.console())
