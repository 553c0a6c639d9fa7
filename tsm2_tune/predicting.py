"""The command that tells what kernels would gain, without a GPU."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import click

from tsm2_tune import display
from tsm2_tune.command_options import json_option, shapes_options
from tsm2_tune.errors import InputError
from tsm2_tune.tuner.addresses import PREFIX
from tsm2_tune.usage import Command, option, tell

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tsm2_tune.tuner.export.chosen import Choice

kernels_option = option(
    "--db",
    "database",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Take the kernels of this database, not those that the package brings.",
)


@click.command(cls=Command)
@option(
    "--device", "spec", metavar="CARD", help="A card that has pretuned kernels, such as h100, or a device of --db."
)
@shapes_options(required=True)
@kernels_option
@json_option
def predict(
    spec: str | None, shapes: str, dtypes: str, ops: str, layout: str, math: str, database: str | None, as_json: bool
) -> None:
    """Predict the gain over cuBLAS, without a GPU.

    \b
    tsm2-tune predict --device h100 --shapes 30000x12x5000
    tsm2-tune predict --db results.db --shapes 30000x12x5000,16x16x1000000 --dtype f64 --json

    An exported module of these kernels is made and asked what it would do. For each problem: the time of the kernel
    that it chooses, that of cuBLAS and the ratio of both, whether that was measured at the shape or is predicted,
    and the shape that the kernel was measured at, with its distance: 0.7 is twice as long in one of m, n and k.
    """
    from tsm2_tune.options import problems_of

    problems = problems_of(shapes, dtypes, ops, layout, math)
    from tsm2_tune.tuner.export.chosen import choices
    from tsm2_tune.tuner.store import Store
    from tsm2_tune.tuner.target import stored_target

    place = database if database is not None else _pack_of(spec)
    with Store.open(place, create=False) as store, display.waiting(f"asking the kernels of {place}"):
        device = stored_target(store.devices(), None if database is None else spec, place)[0]
        found = choices(store, device, problems, tell)
    if as_json:
        click.echo(json.dumps({"device": device, "problems": [_facts(one) for one in found]}, indent=2))
    else:
        _print(device, found)


def _pack_of(spec: str | None) -> str:
    """Return the name of the kernels that the package brings for the card. Raise InputError if there are none."""
    from tsm2_tune.pretuned import pretuned

    names = [one.name for one in pretuned()]
    if spec is None or spec.lower() not in names:
        asked = "no card is named" if spec is None else f"the package brings no kernels for {spec!r}"
        raise InputError(f"{asked}: name one of {', '.join(names)} with --device, or a database with --db")
    return PREFIX + spec.lower()


def _facts(one: Choice) -> dict[str, Any]:
    match = one.match
    return {
        "problem": one.asked.text,
        "kernel_us": match.expected_us,
        "vendor_us": match.vendor_us,
        "x_vendor": one.ratio,
        "is_measured": match.distance == 0,
        "measured_at": "x".join(map(str, (match.winner.m, match.winner.n, match.winner.k))),
        "distance": match.distance,
        "cache": match.winner.cache,
        "chosen": "vendor" if one.is_vendors else match.winner.config,
        "reason": one.reason,
    }


def _print(device: str, found: Sequence[Choice]) -> None:
    console = display.console()
    display.print_line(console, f"{device}:")
    rows = [_facts(one) for one in found]
    cells = [
        [
            row["problem"],
            *(
                number_text(row[name], digits)
                for name, digits in (("kernel_us", 1), ("vendor_us", 1), ("x_vendor", 2))
            ),
            "measured" if row["is_measured"] else "predicted",
            row["measured_at"],
            f"{row['distance']:.1f}",
        ]
        for row in rows
    ]
    heads = ["problem", "us", "cuBLAS us", "x", "time", "measured at", "distance"]
    styles = ["yellow" if one.is_vendors else "" for one in found]
    display.print_table(console, heads, cells, right=(1, 2, 3, 6), dropped=(5,), styles=styles)
    display.print_line(console, closing_text([one.ratio for one in found]))
    for row in rows:
        display.print_hanging(console, f"{row['problem']}: {row['reason']}", 2)


def number_text(value: float | None, digits: int) -> str:
    """Return the number as a cell of a table; a dash if it is not known."""
    return "-" if value is None else f"{value:.{digits}f}"


def closing_text(ratios: Sequence[float | None]) -> str:
    """Return a line that compares the kernels with cuBLAS."""
    found = [one for one in ratios if one is not None]
    if not found:
        return "no time to compare with cuBLAS"
    mean = math.exp(math.fsum(map(math.log, found)) / len(found))
    faster = sum(one >= 1 for one in found)
    return f"geometric mean {mean:.2f} x cuBLAS: {faster} faster, {len(found) - faster} slower"
