"""`tsm2-tune doctor`: check whether tuning can run on this machine."""

from __future__ import annotations

import click

from tsm2_tune.commands.errors import Command
from tsm2_tune.commands.options import database_option, device_option, json_option
from tsm2_tune.console import tables
from tsm2_tune.console.printable import print_json
from tsm2_tune.tuner.results.storage.addresses import shown_name

STATE_WIDTH = 9  # columns of a line's first word (ok, note, problem) with its padding


@click.command(cls=Command)
@device_option
@database_option()
@json_option
@click.pass_context
def doctor(ctx: click.Context, spec: str | None, database: str, as_json: bool) -> None:
    """Check this machine and explain how to fix it.

    \b
    tsm2-tune doctor --device 0

    Each line is ok, a note (tuning runs, but times may suffer or something optional is missing), or a problem (tuning
    on this device cannot run). With a problem the exit status is 1.
    """
    from tsm2_tune.tuner.device.target import HOST, check_spec
    from tsm2_tune.tuner.doctor.examination import DATABASE, examine
    from tsm2_tune.tuner.doctor.finding import State

    if spec is not None:
        check_spec(spec)
    with tables.waiting("looking"):
        found = examine(spec, database)
    if as_json:
        print_json({"device": found.spec, "can_tune": found.can_tune, "findings": found.findings})
    else:
        console = tables.console()
        for one in found.findings:
            tables.print_hanging(console, one.text, STATE_WIDTH)
        where = "this host" if found.spec == HOST else f"GPU {found.spec}"
        faulty = {one.name for one in found.findings if one.state is State.PROBLEM}
        can, but = "can" if faulty <= {DATABASE} else "cannot", ""
        if faulty == {DATABASE}:
            but = f", but not with {shown_name(database)}: name another database with --db"
        tables.print_line(console, f"tuning {can} run on {where}{but}")
    if not found.can_tune:
        ctx.exit(1)
