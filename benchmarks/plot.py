"""Plot the percentage of the floor that our kernel, cuBLAS and cuBLASLt reach in each cell of the headline shapes."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.cells import REGIMES, in_set
from tsm2_tune.errors import InputError, ToolMissing

Row = dict[str, Any]

CONTESTANTS = (("ours", "ours", "o", "C0"), ("cublas", "cuBLAS", "s", "C1"), ("cublaslt", "cuBLASLt", "x", "C2"))
INCHES_WIDE = 12.0  # width of the picture: a page shows its 1440 pixels at two thirds of their size
DOTS_PER_INCH = 120
INCHES_HIGH = 1.9  # height of one row of the picture
TITLE_INCHES = 0.5  # space above the plots
POINTS = 11  # font size
MOST_LEVEL = 14  # with more labels than this, a panel's labels are rotated


def matplotlib() -> ModuleType:
    """Return `matplotlib.pyplot` without a display. Raise ToolMissing if it is not installed."""
    try:
        importlib.import_module("matplotlib").use("Agg")
        return importlib.import_module("matplotlib.pyplot")
    except ModuleNotFoundError:
        raise ToolMissing("matplotlib is not installed, which the plot needs: pip install matplotlib") from None


def groups_of(rows: Sequence[Row]) -> dict[tuple[str, str], dict[str, list[Row]]]:
    """Return {(element type, layout): {regime: rows sorted by shape}}."""
    groups: dict[tuple[str, str], dict[str, list[Row]]] = {}
    for row in sorted(rows, key=lambda row: (max(row["m"], row["k"]), row["k"], row["n"], row["m"])):
        groups.setdefault((row["dtype"], row["layout"]), {}).setdefault(row["regime"], []).append(row)
    return groups


def shown(rows: Sequence[Row]) -> list[Row]:
    """Return the headline shapes that fit on a page, or all shapes if there are none."""
    return [row for row in rows if in_set(row, "headline")] or list(rows)


def draw(found: dict[str, Any], path: Path) -> None:
    """Write the picture: a row for each element type and layout, a column for each regime, a mark for each cell."""
    plt = matplotlib()
    groups = groups_of(shown(found["rows"]))
    if not groups:
        raise InputError("no row to draw: measure a cell first")
    regimes = sorted({regime for group in groups.values() for regime in group}, key=REGIMES.index)
    most = [max(len(group.get(regime, ())) for group in groups.values()) for regime in regimes]
    high = INCHES_HIGH * len(groups) + TITLE_INCHES
    with plt.rc_context({"font.size": POINTS}):
        figure, axes = plt.subplots(
            len(groups),
            len(regimes),
            figsize=(INCHES_WIDE, high),
            width_ratios=[max(count, 4) for count in most],
            squeeze=False,
            sharey=True,
        )
        for line, ((dtype, layout), group) in zip(axes, groups.items(), strict=True):
            for axis, regime in zip(line, regimes, strict=True):
                if regime in group:
                    draw_cells(axis, group[regime], f"{regime}, {dtype}, {layout}")
                else:
                    axis.set_axis_off()
            line[0].set_ylabel("% of floor")
        marks = [plt.Line2D([], [], linestyle="", marker=m, color=c, label=label) for _, label, m, c in CONTESTANTS]
        figure.legend(handles=marks, loc="upper right", ncols=len(CONTESTANTS), frameon=False)
        title = f"{found['device']}, {found['date']}, clean L2, cuBLAS {found['cublas']}"
        figure.suptitle(title, x=0.01, y=1 - TITLE_INCHES / 4 / high, ha="left", va="top", size=POINTS + 1)
        figure.tight_layout(rect=(0, 0, 1, 1 - TITLE_INCHES / high))
        figure.savefig(path, dpi=DOTS_PER_INCH, format="png")
        plt.close(figure)


def draw_cells(axis: Any, rows: Sequence[Row], title: str) -> None:
    """Draw one regime of an element type and a layout."""
    for name, _, mark, colour in CONTESTANTS:
        shares = [(x, 100 * row["floor_us"] / row[f"{name}_us"]) for x, row in enumerate(rows) if row[f"{name}_us"]]
        axis.plot(*zip(*shares, strict=True), mark, color=colour, markersize=5) if shares else None
    axis.axhline(100, color="grey", linewidth=0.8)
    axis.set_ylim(0, 110)
    axis.set_yticks((0, 50, 100))
    axis.set_title(title, fontsize=POINTS)
    narrow = [narrow_text(row) for row in rows]
    is_level = len(rows) <= MOST_LEVEL and max(map(len, narrow)) <= 2
    axis.set_xticks(range(len(rows)), narrow, rotation=0 if is_level else 90, size=POINTS - 1)
    long = [long_text(row) for row in rows]
    starts = [x for x, text in enumerate(long) if x == 0 or text != long[x - 1]]
    for start, end in zip(starts, [*starts[1:], len(rows)], strict=True):
        if start > 0:
            axis.axvline(start - 0.5, color="grey", linewidth=0.5)
        if is_level:
            middle = (start + end - 1) / 2
            below = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "va": "top"}
            axis.annotate(long[start], (middle, 0), (0, -18), size=POINTS - 1, ha="center", **below)
    axis.grid(axis="y", linewidth=0.3)


def narrow_text(row: Row) -> str:
    """Return the small extents of a cell as text, such as 8x16, or 8 if both are equal."""
    small = {"R": (row["n"],), "L": (row["k"], row["n"])}.get(row["regime"], (row["m"], row["n"]))
    return "x".join(map(str, dict.fromkeys(small)))


def long_text(row: Row) -> str:
    """Return the large extents of a cell as text, or one if both are equal."""
    large = {"R": (row["m"], row["k"]), "L": (row["m"],)}.get(row["regime"], (row["k"],))
    return " x ".join(_power_of_ten(extent) for extent in dict.fromkeys(large))


def _power_of_ten(extent: int) -> str:
    zeros = len(str(extent)) - 1
    return f"$10^{{{zeros}}}$" if extent == 10**zeros else str(extent)
