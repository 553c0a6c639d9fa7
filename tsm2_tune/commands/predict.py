"""`tsm2-tune predict`: predict what kernels gain over cuBLAS, without a GPU."""

from __future__ import annotations

from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

import click

from tsm2_tune.commands.errors import Command, option
from tsm2_tune.commands.options import json_option, shapes_options
from tsm2_tune.console import tables
from tsm2_tune.console.printable import print_json, tell
from tsm2_tune.errors import InputError
from tsm2_tune.tuner.measure.vendor.table_cells import number_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tsm2_tune.generator.problem import Problem
    from tsm2_tune.pretuned import Pretuned
    from tsm2_tune.tuner.packs.choice import Choice, NoChoice

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
@shapes_options()
@kernels_option
@json_option
@click.pass_context
def predict(
    ctx: click.Context, spec: str | None, problems: tuple[Problem, ...], database: str | None, as_json: bool
) -> None:
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
    from tsm2_tune.tuner.device.target import stored_target
    from tsm2_tune.tuner.packs.choice import Choice, choices

    source = database if database is not None else _text_of(spec)
    with tables.waiting("asking the kernels, which takes longer the first time"):
        device, found = choices(source, problems, lambda known: stored_target(known, spec, database or "")[0], tell)
    rows, chosen = [_facts(one) for one in found], [one for one in found if isinstance(one, Choice)]
    if as_json:
        print_json({"device": device, "problems": rows})
    else:
        _print(device, found, rows)
    if len(chosen) < len(found):
        ctx.exit(1)


def _text_of(spec: str | None) -> Pretuned:
    """Return the pretuned kernels for a card. Raise InputError if there are none."""
    from tsm2_tune.api.parse import hint_of
    from tsm2_tune.pretuned import pretuned

    texts = {one.name: one for one in pretuned()}
    if spec is None or spec.lower() not in texts:
        asked = "no card is named" if spec is None else f"there are no pretuned kernels for {spec!r}"
        known = f"name one of {', '.join(texts)} with --device, or a database with --db"
        raise InputError(f"{asked}: {known}{hint_of(spec, list(texts))}")
    return texts[spec.lower()]


def _facts(one: Choice | NoChoice) -> dict[str, Any]:
    """Return the fields of one problem for JSON; None where it has no kernel."""
    from tsm2_tune.tuner.packs.choice import Choice

    made = one if isinstance(one, Choice) else None
    match = made and made.match
    return {
        "problem": one.asked.text,
        "kernel_us": match and match.expected_us,
        "vendor_us": made and made.vendor_us,
        "x_vendor": made and made.ratio,
        "is_measured": match and match.is_tuned,
        "measured_at": made
        and f"{made.measured_batch}*" * (made.measured_batch > 1) + "x".join(map(str, made.measured_at)),
        "distance": made and made.distance,
        "l2_state": match and match.winner.cache,
        "chosen": made and ("vendor" if made.is_vendor_chosen else made.match.winner.config),
        "reason": one.reason,
    }


def _print(device: str, found: Sequence[Choice | NoChoice], rows: Sequence[dict[str, Any]]) -> None:
    from tsm2_tune.tuner.packs.choice import Choice

    console = tables.console()
    tables.print_line(console, f"{device}:")
    kinds, of_vendor = {None: "-", True: "measured", False: "predicted"}, {None: "no kernel", "vendor": "cuBLAS"}
    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "problem": lambda row: row["problem"],
        "us": lambda row: number_text(row["kernel_us"], 1),
        "cuBLAS us": lambda row: number_text(row["vendor_us"], 1),
        "x": lambda row: number_text(row["x_vendor"], 2),
        "chosen": lambda row: of_vendor.get(row["chosen"], "kernel"),
        "time": lambda row: kinds[row["is_measured"]],
        "measured at": lambda row: row["measured_at"] or "-",
        "distance": lambda row: number_text(row["distance"], 1),
    }

    def style(row: dict[str, Any]) -> str:
        return "yellow" if row["chosen"] in of_vendor or (row["x_vendor"] or 1.0) < 1 else ""

    tables.print_table(console, columns, rows, dropped=("measured at",), style=style)
    chosen = [one for one in found if isinstance(one, Choice)]
    tables.print_line(console, closing_text([one.ratio for one in chosen], chosen))
    for one in found:
        called = "cuBLAS is called, not " if isinstance(one, Choice) and one.is_vendor_chosen else ""
        text = f"{one.asked.text}: {called}{one.match}" if isinstance(one, Choice) else one.reason
        tables.print_hanging(console, text, 2)


def closing_text(ratios: Sequence[float | None], choices: Sequence[Choice]) -> str:
    """Return the line below a table: the mean speedup over cuBLAS of the kernels, and of an exported module."""
    pairs = zip(ratios, choices, strict=True)
    found = [(ratio, choice.is_vendor_chosen) for ratio, choice in pairs if ratio is not None]
    if not found:
        return "no time to compare with cuBLAS"
    faster = sum(ratio >= 1 for ratio, _ in found)
    counts = f"{faster} faster, {len(found) - faster} slower"
    mean = geometric_mean(ratio for ratio, _ in found)
    vendors = sum(is_vendor_chosen for _, is_vendor_chosen in found)
    if not vendors:
        return f"geometric mean {mean:.2f} x cuBLAS: {counts}"
    gain = geometric_mean(1.0 if is_vendor_chosen else ratio for ratio, is_vendor_chosen in found)
    return (
        f"geometric mean {gain:.2f} x cuBLAS with an exported module, which calls cuBLAS for {vendors} of"
        f" {len(found)}; {mean:.2f} x with kernels only: {counts}"
    )
