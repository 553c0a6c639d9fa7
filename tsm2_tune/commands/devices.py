"""`tsm2-tune devices`: list the devices of this machine, and cards whose data sheets the package includes."""

from __future__ import annotations

from dataclasses import asdict

import click

from tsm2_tune.commands.errors import Command
from tsm2_tune.commands.options import json_option
from tsm2_tune.console import tables
from tsm2_tune.console.printable import print_json


@click.command(cls=Command)
@json_option
def devices(as_json: bool) -> None:
    """List this machine's devices and the bundled cards."""
    from tsm2_tune.console import plan_tables
    from tsm2_tune.errors import TuneError
    from tsm2_tune.generator.device.cards import PROFILES
    from tsm2_tune.tuner.device.cuda import cuda_device_count
    from tsm2_tune.tuner.device.target import limits_of

    found = []
    for spec in [*(str(ordinal) for ordinal in range(cuda_device_count())), "cpu", *PROFILES]:
        try:
            found.append((spec, "bundled" if spec in PROFILES else "here", limits_of(spec)))
        except TuneError as error:
            click.echo(f"device {spec}: {error}", err=True)
    if as_json:
        print_json([{"device": spec, "kind": kind, **asdict(limits)} for spec, kind, limits in found])
        return
    plan_tables.print_devices(found, tables.console())
