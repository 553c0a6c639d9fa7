"""What files of `benchmarks.programs` say: read, checked, and as a table."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.headline import markdown, number
from benchmarks.result_file import is_time
from tsm2_tune.errors import InputError

TURNS = ("before_ms", "after_ms")


def read_programs(path: Path) -> dict[str, Any]:
    """The programs of the file. InputError where it is none of this bench."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["programs"]
        times = [ms for program in found.values() for turn in TURNS for ms in program[turn]]
    except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is no file of programs ({error}): name one that this bench has written") from None
    if not times or not all(ms and is_time(ms) for ms in times):
        raise InputError(f"{path} is no file of programs (its times): name one that this bench has written")
    return found


def table(tuned: Mapping[str, Any], untuned: Mapping[str, Any]) -> str:
    """Markdown: milliseconds of each program by itself, with a pack of other shapes, and tuned for its products."""
    lines = []
    for name in {**tuned, **untuned}:
        of_program = [found[name] for found in (tuned, untuned) if name in found]
        before = statistics.median(ms for program in of_program for ms in program["before_ms"])
        cells = [name, number(before, 2)]
        for found in (untuned, tuned):
            after = statistics.median(found[name]["after_ms"]) if name in found else None
            cells += ["-", "-"] if after is None else [number(after, 2), number(before / after, 2)]
        lines.append(tuple(cells))
    head = ("program", "by itself, ms", "with other shapes' kernels, ms", "times as fast", "tuned for it, ms")
    return markdown((*head, "times as fast"), lines, texts=("program",))
