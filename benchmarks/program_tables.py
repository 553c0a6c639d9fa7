"""Read and check files of `benchmarks.programs`, and print them as a table."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.headline import markdown, number
from benchmarks.plot import DOTS_PER_INCH, INCHES_WIDE, POINTS, matplotlib
from benchmarks.result_file import is_number
from tsm2_tune.errors import InputError

TURNS = ("before_ms", "after_ms")


def read_programs(path: Path) -> dict[str, Any]:
    """Return the programs in the file. Raise InputError if this bench did not write the file."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["programs"]
        turns = [program[turn] for program in found.values() for turn in TURNS]
        times = [ms for turn in turns for ms in turn]
    except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is no file of programs ({error}): name one that this bench has written") from None
    if not turns or not all(turns) or not all(map(is_number, times)):
        raise InputError(f"{path} is no file of programs (its times): name one that this bench has written")
    return found


def times_as_fast(program: Mapping[str, Any]) -> float:
    before, after = (statistics.median(program[turn]) for turn in TURNS)
    return float(before / after)


def draw(tuned: Mapping[str, Any], others: Mapping[str, Any], cards: tuple[str, str], path: Path) -> None:
    """Write the picture: a bar for each program and pack, with the speedup."""
    plt = matplotlib()
    names = [*{**tuned, **others}]
    figure, axes = plt.subplots(figsize=(INCHES_WIDE, 0.5 * len(names) + 1), dpi=DOTS_PER_INCH, layout="constrained")
    packs = ((tuned, f"tuned for it, {cards[0]}", -0.2), (others, f"kernels of other shapes, {cards[1]}", 0.2))
    for found, label, offset in packs:
        bars = [(at + offset, times_as_fast(found[name])) for at, name in enumerate(names) if name in found]
        drawn = axes.barh(*zip(*bars, strict=True), height=0.38, label=label)
        axes.bar_label(drawn, fmt=" %.2f", fontsize=POINTS)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks(range(len(names)), names, fontsize=POINTS)
    axes.invert_yaxis()
    axes.set_xlabel("times as fast as by cuBLAS alone", fontsize=POINTS)
    axes.legend(fontsize=POINTS)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Software": None})
    plt.close(figure)


def table(tuned: Mapping[str, Any], others: Mapping[str, Any], cards: tuple[str, str]) -> str:
    """Return a Markdown table of milliseconds per program.

    On one GPU, the program alone and with kernels tuned for its products; on another GPU, alone and with kernels of
    other shapes.
    """
    lines = []
    for name in {**tuned, **others}:
        cells = [name]
        for found in (tuned, others):
            if name not in found:
                cells += ["-"] * 3
                continue
            before, after = (statistics.median(found[name][turn]) for turn in TURNS)
            cells += [number(before, 2), number(after, 2), number(times_as_fast(found[name]), 2)]
        lines.append(tuple(cells))
    heads = [(f"{cards[0]} by itself", "tuned for it", "times as fast")]
    heads += [(f"{cards[1]} by itself", "kernels of other shapes", "times as fast")]
    return markdown(("program", *heads[0], *heads[1]), lines, texts=("program",))
