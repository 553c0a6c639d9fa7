"""The table of docs/batches.md, from result files of `benchmarks.batches`."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.batches import LARGEST_SMALL
from benchmarks.headline import markdown
from tsm2_tune.generator.problem import Problem

Row = Mapping[str, Any]
HEADS = ("batches", "type", "count", "speed-up", "least", "over 3 % slower", "% of floor")
SLOWER = 0.97


def read(paths: Iterable[Path]) -> dict[Problem, Row]:
    """Return {problem: row}. Of several rows of a problem the one with the largest speed-up counts."""
    found: dict[Problem, Row] = {}
    for path in paths:
        for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
            problem = Problem.parse(row["problem"])
            if problem not in found or row["x_cublas"] > found[problem]["x_cublas"]:
                found[problem] = row
    return found


def kind(problem: Problem) -> tuple[bool, str, int, str]:
    """Return whether the batch is a stack, its kind, the largest size of its line in the table, and the type."""
    m, n, k, dtype = problem.m, problem.n, problem.k, problem.dtype_name
    if max(m, n, k) > LARGEST_SMALL:
        regime = "X^T X" if problem.is_gram else "L" if max(n, k) <= LARGEST_SMALL else "T" if k > max(m, n) else "R"
        return True, f"stacks of {regime}", 0, dtype
    size = next(most for most in (8, 16, LARGEST_SMALL) if m <= most)
    return False, f"small, {f'n = {n}, m = k' if n < k else 'm = n = k'}", size, dtype


def table(found: Mapping[Problem, Row]) -> str:
    """Return a Markdown table with a line for each kind and type, and one for all."""
    kinds: dict[tuple[bool, str, int, str], list[Problem]] = {}
    for problem in found:
        kinds.setdefault(kind(problem), []).append(problem)
    lines = []
    for (is_stack, name, _, dtype), problems in sorted(kinds.items()):
        least, most = (of(problem.m for problem in problems) for of in (min, max))
        extents = f"{least} to {most}" if least < most else f"{least}"
        text = name if is_stack else f"{name}: {extents}"
        lines.append(_line(text, dtype, [found[problem] for problem in problems]))
    return markdown(HEADS, [*lines, _line("all", "", list(found.values()))], texts=HEADS[:2])


def _line(batches: str, dtype: str, rows: list[Row]) -> tuple[str, ...]:
    gains = [row["x_cublas"] for row in rows]
    mean, slower = statistics.geometric_mean(gains), sum(gain < SLOWER for gain in gains)
    floor = statistics.mean(row["percent_of_floor"] for row in rows)
    return batches, dtype, str(len(rows)), f"{mean:.2f}", f"{min(gains):.2f}", str(slower), f"{floor:.0f}"
