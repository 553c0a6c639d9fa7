"""`tsm2-tune compare`: time kernels against cuBLAS without tuning."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from tsm2_tune.commands.errors import Command, ended_by_signals
from tsm2_tune.commands.options import cache_option, gpu_option, json_option, shapes_options, wait_option
from tsm2_tune.commands.predict import closing_text, kernels_option
from tsm2_tune.console import tables
from tsm2_tune.console.printable import fields, print_json, tell
from tsm2_tune.console.winner_columns import layout_text, product_text, spread_percent
from tsm2_tune.errors import InputError
from tsm2_tune.pretuned import without_gpu
from tsm2_tune.tuner.measure.vendor.table_cells import number_text
from tsm2_tune.tuner.results.storage.addresses import PREFIX, shown_name
from tsm2_tune.tuner.results.trial import Cache

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tsm2_tune.generator.problem import Problem
    from tsm2_tune.pretuned import Pretuned
    from tsm2_tune.tuner.device.target import Target
    from tsm2_tune.tuner.export.comparison import Compared


@click.command(cls=Command)
@gpu_option
@shapes_options()
@kernels_option
@cache_option(Cache.DIRTY, "State of the L2 before each sample of a kernel or of cuBLAS.")
@wait_option
@json_option
@click.pass_context
def compare(
    ctx: click.Context,
    spec: str | None,
    problems: tuple[Problem, ...],
    database: str | None,
    cache: Cache,
    wait: bool,
    as_json: bool,
) -> None:
    """Time kernels against cuBLAS without tuning.

    \b
    tsm2-tune compare --device 0 --shapes 20480x16x20480,1048576x8x8
    tsm2-tune compare --db results.db --shapes 30000x12x5000 --dtype f64 --json

    For each problem, the command chooses the kernel that a module exported from the pretuned kernels, or from --db,
    would choose. It verifies the kernel, then times it interleaved with cuBLAS and cuBLASLt. Times are medians in
    microseconds; +- is the distance to the farther end of the 95 % confidence interval. The column "chosen" shows
    cuBLAS if the module would call cuBLAS for the problem; the kernel is timed anyway. Nothing is stored. The exit
    status is 1 if a problem has no kernel, or its kernel is wrong or cannot be timed.
    """
    from tsm2_tune.tuner.device.target import HOST, default_spec, find_target
    from tsm2_tune.tuner.export.comparison import chosen_candidate, compared
    from tsm2_tune.tuner.packs.choice import NoChoice, choices

    device = default_spec() if spec is None else spec
    if spec is None and device == HOST:
        raise click.UsageError(f"no GPU here, and times of kernels on the CPU mean nothing: {without_gpu()}", ctx)
    target = find_target(device)
    source = database if database is not None else _text_of(target)
    place = source if isinstance(source, str) else PREFIX + source.name
    state = target.cache(cache)
    with ended_by_signals(ctx, None, stderr=as_json), tables.waiting("comparing"):
        _, chosen = choices(source, problems, partial(_device_of, target), tell)
        for one in chosen:
            if isinstance(one, NoChoice):
                tell(one.reason)
        wanted = [(one, chosen_candidate(target, one)) for one in chosen if not isinstance(one, NoChoice)]
        found = list(compared(target, wanted, state, wait=tell if wait else None))
    facts = [_facts(one) for one in found]
    if as_json:
        head = {"device": target.identity.name, "l2_state": state.value, "kernels": shown_name(place)}
        print_json(head | {"is_emulated": target.is_host, "problems": facts})
    else:
        _print(target, state, place, found, facts)
    if len(found) < len(problems) or any(one.measured is None for one in found):
        ctx.exit(1)


def _text_of(target: Target) -> Pretuned:
    """Return the pretuned kernels for the device. Raise InputError if there are none."""
    from tsm2_tune.pretuned import for_card

    found = None if target.is_host else for_card(target.identity.name, target.identity.compute_capability)
    if found is None:
        raise InputError(
            f"no kernels are pretuned for {target.identity.name}: name a database with its kernels with --db"
        )
    return found


def _device_of(target: Target, stored: Sequence[str]) -> str:
    """Return the target's name if the database has kernels tuned on it, else the first device of the database."""
    name = target.identity.name
    return name if name in stored or not stored else stored[0]


def _facts(one: Compared) -> dict[str, Any]:
    measured, asked = one.measured, one.choice.asked
    return {
        "problem": asked.text,
        "dtype": asked.dtype_name,
        "product": product_text(asked.op),
        "layout": layout_text(asked.op),
        "kernel_us": measured and measured.median_us,
        **fields(measured, "low_us high_us"),
        "vendor_us": one.vendor_us,
        "x_vendor": None if measured is None or one.vendor_us is None else one.vendor_us / measured.median_us,
        "expected_us": one.choice.match.expected_us,
        "is_vendor_chosen": one.choice.is_vendor_chosen,
        "kernel": one.config.text,
        "reason": one.choice.reason,
        "error": one.trouble,
    }


def _print(
    target: Target, state: Cache, place: str, found: Sequence[Compared], facts: Sequence[dict[str, Any]]
) -> None:
    console = tables.console()
    name, kernels = target.identity.name, shown_name(place)
    if target.is_host:
        about = "kernels are emulated on the CPU and there is no cuBLAS: times mean nothing"
    else:
        about = f"L2 {state} before each sample, interleaved with cuBLAS"
    layouts = sorted({fact["layout"] for fact in facts})
    lying = f", {layouts[0]}" if len(layouts) == 1 else ""
    tables.print_line(console, f"{name}, kernels of {kernels}{lying}: {about}")
    rows = list(zip(found, facts, strict=True))
    columns: dict[str, Callable[[tuple[Compared, dict[str, Any]]], str]] = {
        "shape": lambda row: row[0].choice.asked.shape,
        "type": lambda row: row[1]["dtype"],
        "product": lambda row: row[1]["product"] + ("" if lying else " " + row[1]["layout"].removesuffix("-major")),
        "us": lambda row: number_text(row[1]["kernel_us"], 1),
        "+-": lambda row: "-" if row[0].measured is None else f"{spread_percent(row[0].measured):.1f} %",
        "cuBLAS us": lambda row: number_text(row[1]["vendor_us"], 1),
        "x": lambda row: number_text(row[1]["x_vendor"], 2),
        "chosen": lambda row: "cuBLAS" if row[0].choice.is_vendor_chosen else "kernel",
        "kernel": lambda row: row[0].config.family,
    }

    def style(row: tuple[Compared, dict[str, Any]]) -> str:
        return "yellow" if (row[1]["x_vendor"] or 1.0) < 1 else ""

    tables.print_table(console, columns, rows, dropped=("+-",), style=style)
    tables.print_line(console, closing_text([fact["x_vendor"] for fact in facts], [one.choice for one in found]))
    for fact in facts:
        if fact["error"]:
            tables.print_hanging(console, f"{fact['problem']}: {fact['error']}", 2)
