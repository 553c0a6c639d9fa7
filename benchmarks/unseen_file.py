"""Read and check a result file of `benchmarks.unseen`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.result_file import MOST, is_number, is_text, is_time, read, unusable_field
from tsm2_tune.errors import InputError


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < MOST


def _is_flag_or_unknown(value: Any) -> bool:
    return value is None or isinstance(value, bool)


def _is_text_or_none(value: Any) -> bool:
    return value is None or isinstance(value, str)


OF_A_RUN: dict[str, Callable[[Any], bool]] = {
    "pack": is_text,
    "pack_facts": lambda facts: unusable_field(facts, {"winners": _is_count, "kernels": _is_count}) is None,
    "draw": lambda facts: unusable_field(facts, {"seed": _is_count, "each": _is_count}) is None,
    "search_seconds": lambda value: value == 0 or is_number(value),
    "fallback_library": _is_text_or_none,
}
OF_A_ROW: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("plan_us", "search_us", "fallback_us", "expected_us"), is_time),
    **dict.fromkeys(("falls_back", "plan_verified", "search_verified", "fallback_verified"), _is_flag_or_unknown),
    **dict.fromkeys(("choice", "basis"), is_text),
    "search_configuration": _is_text_or_none,
}


def read_unseen(path: Path) -> dict[str, Any]:
    """Return the content of a result file. Raise InputError if this bench did not write it."""
    found = read(path)
    for run in (*found.get("earlier_runs", []), found):
        if (unusable := unusable_field(run, OF_A_RUN)) is not None:
            raise InputError(f"{path} has no usable {unusable} of a run: name a file of unseen")
    for number, row in enumerate(found["rows"], start=1):
        if (unusable := unusable_field(row, OF_A_ROW)) is not None:
            raise InputError(f"{path} has no usable {unusable} in row {number}: name a file of unseen")
        dirty = {f"{who}_dirty_us": is_time for who in ("plan", "search", "fallback") if f"{who}_dirty_us" in row}
        if (unusable := unusable_field(row, dirty)) is not None:
            raise InputError(f"{path} has no usable {unusable} in row {number}: name a file of unseen")
        if row["plan_us"] is not None and not (is_text(row.get("plan")) and is_number(row.get("plan_seconds"))):
            raise InputError(f"{path} does not say the plan of row {number}: name a file of unseen")
        if row["falls_back"] and row["fallback_us"] is None:
            raise InputError(f"{path} has no time of the fallback in row {number}: name a file of unseen")
    return {"earlier_runs": [], "skipped": [], **found}
