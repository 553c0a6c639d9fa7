"""Evaluate the choices of whole and thinned packs by measured times, without a GPU.

    python -m benchmarks.thinned h100 --output thinned.json
    python -m benchmarks.thinned h200 --unseen unseen.json --output unseen-evaluated.json

A thinned pack has the kernels and times of a random share of the pretuned pack's shapes. It chooses at each
measured shape, without the kernels and times of this shape. The times of the chosen kernel and of cuBLAS there are
those of the whole pack. With `--unseen`, the whole pack chooses at the shapes of a file of `benchmarks.unseen`.
That file has times of the kernels that were chosen there by prediction, by timing and by a search. Products whose
chosen kernel was not timed are counted. They are left out, and so are products without a kernel. A product
that the pack leaves to cuBLAS has the gain 1.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click

from benchmarks.result_file import program_facts, read, require_new, write_json
from benchmarks.tables import markdown
from tsm2_tune.commands.errors import Command
from tsm2_tune.errors import InputError
from tsm2_tune.pretuned import pretuned
from tsm2_tune.runtime.choice.choose import Layout, core_record
from tsm2_tune.runtime.choice.core import NO_KERNEL, Core
from tsm2_tune.tuner.export.kernel_sets.rate_fit import fitted
from tsm2_tune.tuner.packs.choice import pretuned_kernels
from tsm2_tune.tuner.packs.core_pack import DeviceRates, MeasuredKernel, core_of
from tsm2_tune.tuner.packs.gains import mean, vendor_us, with_gain_errors

SHARES = (1.0, 0.5, 0.25, 0.1)
DRAWS = 3  # random thinned packs of each share
Shape = tuple[int, ...]  # m, n, k and number of products


@dataclass(slots=True)
class Gains:
    """cuBLAS's time divided by the time that a product takes, for each product whose time is known."""

    ratios: list[float] = field(default_factory=list)
    by_cublas: int = 0  # products that are left to cuBLAS
    unknown: int = 0  # products whose chosen kernel was not timed

    def add(self, kernel_us: float | None, cublas_us: float, *, is_left: bool) -> None:
        """Add a product, which is left to cuBLAS or computed by a kernel."""
        self.by_cublas += is_left
        if is_left or kernel_us is not None:
            self.ratios.append(1.0 if is_left else cublas_us / (kernel_us or math.inf))
        else:
            self.unknown += 1

    def row(self, name: str) -> dict[str, Any]:
        """Return the row of the result file. Raise InputError if no product's time is known."""
        count = len(self.ratios)
        if count == 0:
            raise InputError(f"{name}: no product's time is known")
        slower = {percent: sum(gain * (1 + percent / 100) < 1 for gain in self.ratios) / count for percent in (3, 10)}
        return {
            "pack": name, "products": count, "unknown": self.unknown,
            "left_to_cublas": round(self.by_cublas / (count + self.unknown), 4),
            "x_cublas": round(mean(self.ratios) or 0.0, 4), "slower_by_3_percent": round(slower[3], 4),
            "slower_by_10_percent": round(slower[10], 4), "worst": round(min(self.ratios), 4),
        }  # fmt: skip


def own_shape(kernel: MeasuredKernel) -> Shape:
    w = kernel.winner
    return w.m, w.n, w.k, w.batch


def times_of(kernel: MeasuredKernel) -> dict[Shape, float]:
    """Return the kernel's measured times: shape -> microseconds."""
    elsewhere = {tuple(map(int, time[:4])): time[-1] for time in kernel.times}
    return {**elsewhere, own_shape(kernel): kernel.winner.median_us}


def vendor_times_of(kernels: Sequence[MeasuredKernel]) -> dict[Shape, float]:
    """Return cuBLAS's measured times beside the kernels."""
    found = {tuple(map(int, time[:4])): time[-1] for kernel in kernels for time in kernel.vendor_times}
    own = ((own_shape(kernel), vendor_us(kernel.winner)) for kernel in kernels)
    return found | {shape: us for shape, us in own if us is not None}


def thinned(kernels: Sequence[MeasuredKernel], kept: set[Shape], rates: DeviceRates) -> list[MeasuredKernel]:
    """Return the kernels that were tuned for kept shapes, with the times there, and with rates fitted to these."""
    found = []
    for kernel in kernels:
        if own_shape(kernel) in kept:
            times, vendor_times = (
                tuple(time for time in of if tuple(map(int, time[:4])) in kept)
                for of in (kernel.times, kernel.vendor_times)
            )
            thin = replace(kernel, times=times, vendor_times=vendor_times)
            found.append(thin if thin.tiling is None else replace(thin, tiling=fitted(thin, rates)))
    return found


def gains_of_thinned(kernels: Sequence[MeasuredKernel], rates: DeviceRates, share: float, seed: int) -> Gains:
    """Return the gains of a thinned pack of one device. It keeps at least one kernel of each element type and op."""
    groups = defaultdict[tuple[str, str], list[MeasuredKernel]](list)
    for kernel in kernels:
        groups[kernel.winner.dtype, kernel.winner.op].append(kernel)
    rng, device = random.Random(seed), kernels[0].winner.device
    kept_kernels = list[MeasuredKernel]()
    for group in groups.values():
        shapes = sorted(set(vendor_times_of(group)).union(*map(times_of, group)))
        kept = {*rng.sample(shapes, max(round(share * len(shapes)), 1)), own_shape(rng.choice(group))}
        kept_kernels += thinned(group, kept, rates)
    thin = defaultdict[tuple[str, str], list[MeasuredKernel]](list)
    for kernel in with_gain_errors(kept_kernels, {device: rates}):
        thin[kernel.winner.dtype, kernel.winner.op].append(kernel)
    gains = Gains()
    for (dtype, op), group in groups.items():
        measured = {(one.winner.config, own_shape(one)): times_of(one) for one in group}
        core = core_of(thin[dtype, op], {device: rates})
        for shape, cublas_us in vendor_times_of(group).items():
            layout = Layout.of_op(dtype, (shape[0], shape[1], shape[2]), op, shape[3])
            choice = core.choose(core_record(*layout, leaves_out_shape=True), device)
            if choice.reason != NO_KERNEL and choice.us:
                kernel = thin[dtype, op][choice.kernel]
                us = measured[kernel.winner.config, own_shape(kernel)].get(shape)
                gains.add(us, cublas_us, is_left=bool(choice.is_vendors))
    return gains


def gains_at_unseen(
    core: Core, kernels: Sequence[MeasuredKernel], rows: Sequence[dict[str, Any]], device: str
) -> Gains:
    """Return the gains at the shapes of a file of `benchmarks.unseen`, relative to cuBLAS's own routine."""
    gains = Gains()
    for row in rows:
        if not (row["cublas_us"] and row["cublas_verified"]):
            continue
        planned = (row["plan"] or "").partition(" ")[0].rstrip(":,")
        # The launch of the kernel that was chosen by prediction is probably the one that is chosen here.
        known = {
            planned: row["plan_us"], row["search_configuration"]: row["search_us"],
            row["configuration"]: row["ours_us"],
        }  # fmt: skip
        layout = Layout.of_op(row["dtype"], (row["m"], row["n"], row["k"]), row["op"])
        choice = core.choose(core_record(*layout, leaves_out_shape=True), device)
        if choice.reason != NO_KERNEL:
            us = known.get(kernels[choice.kernel].winner.config)
            gains.add(us, row["cublas_us"], is_left=bool(choice.is_vendors))
    return gains


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows as a Markdown table."""
    heads = (
        "pack",
        "products",
        "not timed",
        "left to cuBLAS",
        "x cuBLAS",
        "over 3 % slower",
        "over 10 % slower",
        "worst",
    )
    lines = [
        (
            row["pack"],
            str(row["products"]),
            str(row["unknown"]),
            f"{row['left_to_cublas']:.0%}",
            f"{row['x_cublas']:.3f}",
            f"{row['slower_by_3_percent']:.1%}",
            f"{row['slower_by_10_percent']:.1%}",
            f"{row['worst']:.2f}",
        )
        for row in rows
    ]
    return markdown(heads, lines)


@click.command(cls=Command)
@click.argument("name")
@click.option("--unseen", multiple=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--output", required=True, type=click.Path(dir_okay=False, path_type=Path))
def main(name: str, unseen: tuple[Path, ...], output: Path) -> None:
    """Evaluate the pretuned pack NAME, and write and print the table."""
    require_new(output)
    text = next((one for one in pretuned() if one.name == name), None)
    if text is None:
        raise InputError(f"no pretuned pack {name}")
    exported, device = pretuned_kernels(text), text.device_name
    kernels, rates = exported.kernels, exported.device_rates[device]
    rows = []
    for path in unseen:
        found = read(path)
        if found["device"] != device:
            raise InputError(f"{path} was measured on {found['device']}, and {name} on {device}")
        gains = gains_at_unseen(core_of(kernels, exported.device_rates), kernels, found["rows"], device)
        rows.append(gains.row(f"{name}, {path.name}"))
    for share in () if unseen else SHARES:
        gains = Gains()
        for seed in range(DRAWS if share < 1 else 1):
            one = gains_of_thinned(kernels, rates, share, seed)
            gains = Gains(gains.ratios + one.ratios, gains.by_cublas + one.by_cublas, gains.unknown + one.unknown)
        rows.append(gains.row(f"{name}, {share:.0%} of its shapes"))
    write_json(output, {**program_facts(), "rows": rows})
    click.echo(table(rows))


if __name__ == "__main__":
    main()
