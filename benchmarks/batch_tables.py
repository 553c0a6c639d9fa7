"""The table of docs/batches.md, from result files of `benchmarks.batches`."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.batches import LARGEST_SMALL, SKINNY
from benchmarks.headline import markdown
from tsm2_tune.generator.problem import Problem

Row = Mapping[str, Any]
HEADS = ("batches", "types", "count", "speed-up", "least", "over 3 % slower", "% of floor")
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


def kind(problem: Problem) -> tuple[str, str]:
    """Return the kind of the batch, and its types, as the table's rows name them."""
    m, n, k, dtype = problem.m, problem.n, problem.k, problem.dtype_name
    if max(m, n, k) > LARGEST_SMALL:
        regime = "X^T X" if problem.is_gram else "L" if max(n, k) <= LARGEST_SMALL else "T" if k > max(m, n) else "R"
        return f"stacks of {regime}", "f32, c64" if dtype in ("f32", "c64") else "f64, c128, bf16"
    most = next(most for most in (8, 16, LARGEST_SMALL) if m <= most)
    shape = f"n at most {SKINNY}" if n < k else "m = n = k"
    return f"small, {shape}: up to {most}", "f32" if dtype == "f32" else "f64"


def table(found: Mapping[Problem, Row]) -> str:
    """Return a Markdown table with a line for each kind, and one for all."""
    kinds: dict[tuple[str, str], list[Row]] = {}
    for problem, row in found.items():
        kinds.setdefault(kind(problem), []).append(row)
    small_first = sorted(kinds, key=lambda name: (name[0].startswith("stacks"), len(name[0]), name))
    lines = [_line(*name, kinds[name]) for name in small_first]
    return markdown(HEADS, [*lines, _line("all", "", list(found.values()))], texts=HEADS[:2])


def _line(batches: str, types: str, rows: list[Row]) -> tuple[str, ...]:
    gains = [row["x_cublas"] for row in rows]
    mean, slower = statistics.geometric_mean(gains), sum(gain < SLOWER for gain in gains)
    floor = statistics.mean(row["percent_of_floor"] for row in rows)
    return batches, types, str(len(rows)), f"{mean:.2f}", f"{min(gains):.2f}", str(slower), f"{floor:.0f}"
