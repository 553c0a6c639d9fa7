"""The share of the floor that ours, cuBLAS and cuBLASLt reach in each cell, as a picture.

python -m benchmarks.plot benchmarks/results/h200-versus-cublas.json versus-cublas.png
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from benchmarks.cells import REGIMES
from benchmarks.result_file import read
from tsm2_tune.errors import InputError, ToolMissing
from tsm2_tune.usage import Command

Row = dict[str, Any]

CONTESTANTS = (("ours", "ours", "o", "C0"), ("cublas", "cuBLAS", "s", "C1"), ("cublaslt", "cuBLASLt", "x", "C2"))
INCHES_PER_CELL = 0.16
LEAST_INCHES = 4.0  # of one regime's width
INCHES_HIGH = 3.2  # of one row of the picture
TITLE_INCHES = 0.3  # above the plots


def matplotlib() -> ModuleType:
    """`matplotlib.pyplot` without a display; ToolMissing where it is not installed."""
    try:
        importlib.import_module("matplotlib").use("Agg")
        return importlib.import_module("matplotlib.pyplot")
    except ModuleNotFoundError:
        raise ToolMissing("matplotlib is not installed, which the plot needs: pip install matplotlib") from None


def groups_of(rows: Sequence[Row]) -> dict[tuple[str, str], dict[str, list[Row]]]:
    """(element type, layout) -> regime -> its rows in order of their shapes."""
    groups: dict[tuple[str, str], dict[str, list[Row]]] = {}
    for row in sorted(rows, key=lambda row: (max(row["m"], row["k"]), row["k"], row["n"], row["m"])):
        groups.setdefault((row["dtype"], row["layout"]), {}).setdefault(row["regime"], []).append(row)
    return groups


def draw(found: dict[str, Any], path: Path) -> None:
    """Write the picture: a row for each element type and layout, a column for each regime, a mark for each cell."""
    plt = matplotlib()
    groups = groups_of(found["rows"])
    if not groups:
        raise InputError("no row to draw: measure a cell first")
    regimes = sorted({regime for group in groups.values() for regime in group}, key=REGIMES.index)
    most = {regime: max(len(group.get(regime, ())) for group in groups.values()) for regime in regimes}
    widths = [max(LEAST_INCHES, INCHES_PER_CELL * most[regime]) for regime in regimes]
    figure, axes = plt.subplots(
        len(groups),
        len(regimes),
        figsize=(sum(widths), INCHES_HIGH * len(groups)),
        width_ratios=widths,
        squeeze=False,
        sharey=True,
    )
    for line, ((dtype, layout), group) in zip(axes, groups.items(), strict=True):
        for axis, regime in zip(line, regimes, strict=True):
            if regime in group:
                draw_cells(axis, group[regime], f"{regime}, {dtype}, {layout}-major")
            else:
                axis.set_axis_off()
        line[0].set_ylabel("% of the floor")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="upper right", ncols=len(CONTESTANTS))
    figure.suptitle(f"{found['device']}, {found['date']}, cold L2, cuBLAS {found['cublas']}")
    figure.tight_layout(rect=(0, 0, 1, 1 - TITLE_INCHES / (INCHES_HIGH * len(groups))))
    figure.savefig(path, dpi=120)
    plt.close(figure)


def draw_cells(axis: Any, rows: Sequence[Row], title: str) -> None:
    """One regime of one element type and layout."""
    for name, label, mark, colour in CONTESTANTS:
        shares = [(x, 100 * row["floor_us"] / row[f"{name}_us"]) for x, row in enumerate(rows) if row[f"{name}_us"]]
        axis.plot(*zip(*shares, strict=True), mark, color=colour, label=label, markersize=4) if shares else None
    axis.axhline(100, color="grey", linewidth=0.8)
    axis.set_ylim(0, 110)
    axis.set_title(title, fontsize="medium")
    axis.set_xticks(range(len(rows)), [f"{row['m']}x{row['n']}x{row['k']}" for row in rows], rotation=90)
    axis.tick_params(axis="x", labelsize="xx-small")
    axis.grid(axis="y", linewidth=0.3)


@click.command(cls=Command)
@click.argument("path", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("picture", type=click.Path(dir_okay=False, path_type=Path))
def main(path: Path, picture: Path) -> None:
    """Draw the rows of a result file."""
    draw(read(path), picture)


if __name__ == "__main__":
    main()
