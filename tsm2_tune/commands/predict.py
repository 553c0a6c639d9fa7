"""`tsm2-tune predict`: predict what kernels gain over cuBLAS, without a GPU."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import click

from tsm2_tune.commands.errors import Command, option
from tsm2_tune.commands.options import json_option, shapes_options
from tsm2_tune.console import tables
from tsm2_tune.console.printable import tell
from tsm2_tune.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tsm2_tune.pretuned import Pretuned
    from tsm2_tune.tuner.packs.choice import Choice, NoChoice

FACTS = (  # of a problem that has a kernel; else None
    "kernel_us", "vendor_us", "x_vendor", "is_measured", "measured_at", "distance", "l2_state", "chosen",
)  # fmt: skip

kernels_option = option(
    "--db",
    "database",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Use the kernels of this database instead of the pretuned ones.",
)


@click.command(cls=Command)
@option(
    "--device", "spec", metavar="CARD", help="A card that has pretuned kernels, such as h100, or a device of --db."
)
@shapes_options(required=True)
@kernels_option
@json_option
@click.pass_context
def predict(
    ctx: click.Context, spec: str | None, shapes: str, dtypes: str, ops: str, layout: str, math: str,
    database: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Predict the gain over cuBLAS, without a GPU.

    \b
    tsm2-tune predict --device h100 --shapes 30000x12x5000
    tsm2-tune predict --db results.db --shapes 30000x12x5000,16x16x1000000 --dtype f64 --json

    For each problem, the table shows the time of the kernel that an exported module would choose, the time of cuBLAS
    or cuBLASLt, whichever is faster, their ratio, and whether the module would call the kernel or cuBLAS. A time is
    measured at the shape, or predicted. The last columns are the nearest shape at which the kernel was measured, and
    the distance to that shape: it is 0.7 if one of m, n and k differs by a factor of 2. Lines below the table explain
    the module's choices: it calls cuBLAS's gemm if that is faster than the kernel, or if the predicted gain
    is too uncertain. The exit status is 1 if a problem has no kernel.
    """
    from tsm2_tune.api.parse import problems_of

    problems = problems_of(shapes, dtypes, ops, layout, math)
    from tsm2_tune.tuner.packs.choice import Choice, choices

    source = database if database is not None else _text_of(spec)
    with tables.waiting("asking the kernels, which takes longer the first time"):
        device, found = choices(source, problems, lambda known: _device_of(known, spec, database), tell)
    rows, chosen = [_facts(one) for one in found], [one for one in found if isinstance(one, Choice)]
    if as_json:
        click.echo(json.dumps({"device": device, "problems": rows}, indent=2))
    else:
        _print(device, rows, chosen)
    if len(chosen) < len(found):
        ctx.exit(1)


def _text_of(spec: str | None) -> Pretuned:
    """Return the pretuned kernels for a card. Raise InputError if there are none."""
    from tsm2_tune.api.parse import hint_of
    from tsm2_tune.pretuned import pretuned

    texts = {one.name: one for one in pretuned()}
    if spec is None or spec.lower() not in texts:
        asked = "no card is named" if spec is None else f"there are no pretuned kernels for {spec!r}"
        hint = hint_of(spec, list(texts))
        raise InputError(f"{asked}: name one of {', '.join(texts)} with --device, or a database with --db{hint}")
    return texts[spec.lower()]


def _device_of(known: Sequence[str], spec: str | None, database: str | None) -> str:
    """Return the full name of the device that `spec` names. Raise InputError if no or several names match."""
    from tsm2_tune.tuner.device.target import stored_target

    return stored_target(known, spec, database or "")[0]


def _facts(one: Choice | NoChoice) -> dict[str, Any]:
    from tsm2_tune.tuner.packs.choice import NoChoice

    if isinstance(one, NoChoice):
        return {"problem": one.asked.text, **dict.fromkeys(FACTS), "reason": one.reason}
    match = one.match
    facts = (
        match.expected_us,
        one.vendor_us,
        one.ratio,
        match.is_tuned,
        f"{one.measured_batch}*" * (one.measured_batch > 1) + "x".join(map(str, one.measured_at)),
        one.distance,
        match.winner.cache,
        "vendor" if one.is_vendor_chosen else match.winner.config,
    )
    return {"problem": one.asked.text, **dict(zip(FACTS, facts, strict=True)), "reason": one.reason}


def _print(device: str, rows: Sequence[dict[str, Any]], chosen: Sequence[Choice]) -> None:
    console = tables.console()
    tables.print_line(console, f"{device}:")
    kinds = {None: "-", True: "measured", False: "predicted"}
    of_vendor = {None: "no kernel", "vendor": "cuBLAS"}
    cells = [
        [
            row["problem"],
            number_text(row["kernel_us"], 1),
            number_text(row["vendor_us"], 1),
            number_text(row["x_vendor"], 2),
            of_vendor.get(row["chosen"], "kernel"),
            kinds[row["is_measured"]],
            row["measured_at"] or "-",
            number_text(row["distance"], 1),
        ]
        for row in rows
    ]
    heads = ["problem", "us", "cuBLAS us", "x", "chosen", "time", "measured at", "distance"]
    styles = ["yellow" if row["chosen"] in of_vendor or (row["x_vendor"] or 1.0) < 1 else "" for row in rows]
    tables.print_table(console, heads, cells, right=(1, 2, 3, 7), dropped=(6,), styles=styles)
    tables.print_line(console, closing_text([one.ratio for one in chosen], chosen))
    for row in rows:
        about = "" if row["chosen"] is None else f"{row['problem']}: "
        tables.print_hanging(console, about + row["reason"], 2)


def number_text(value: float | None, digits: int) -> str:
    """Return a table cell: the number with this many decimals, or a dash for None."""
    return "-" if value is None else f"{value:.{digits}f}"


def chosen_text(choice: Choice) -> str:
    """Return "cuBLAS" or "kernel": which of them an exported module calls for the problem."""
    return "cuBLAS" if choice.is_vendor_chosen else "kernel"


def closing_text(ratios: Sequence[float | None], choices: Sequence[Choice]) -> str:
    """Return the line below a table: the mean speedup over cuBLAS of the kernels, and of an exported module.

    A ratio is cuBLAS's time divided by the kernel's, or None. An exported module calls cuBLAS for some problems.
    """
    pairs = zip(ratios, choices, strict=True)
    found = [(ratio, choice.is_vendor_chosen) for ratio, choice in pairs if ratio is not None]
    if not found:
        return "no time to compare with cuBLAS"
    faster = sum(ratio >= 1 for ratio, _ in found)
    counts = f"{faster} faster, {len(found) - faster} slower"
    mean = _mean([ratio for ratio, _ in found])
    vendors = sum(is_vendor_chosen for _, is_vendor_chosen in found)
    if not vendors:
        return f"geometric mean {mean:.2f} x cuBLAS: {counts}"
    gain = _mean([1.0 if is_vendor_chosen else ratio for ratio, is_vendor_chosen in found])
    return (
        f"geometric mean {gain:.2f} x cuBLAS with an exported module, which calls cuBLAS for {vendors} of"
        f" {len(found)}; {mean:.2f} x with kernels only: {counts}"
    )


def _mean(ratios: Sequence[float]) -> float:
    """Return the geometric mean of the ratios."""
    return math.exp(math.fsum(map(math.log, ratios)) / len(ratios))
