"""The file that a bench writes: facts and a row a cell, anew after every cell, so that a killed run loses nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from benchmarks.cells import CELL_KEY, cell_key
from tsm2_tune.errors import InputError

# What two runs must agree on for their rows to stand in one file.
SAME = ("device", "driver", "toolkit", "flags", "cublas", "cublaslt", "tsm2_tune")
LISTS = ("earlier_runs", "skipped", "rows")


class ResultFile:
    """Facts of the run, the rows of its cells, the cells that were skipped. Written anew with each of them."""

    def __init__(self, path: Path, facts: dict[str, Any]) -> None:
        self.path, self.facts = path, facts
        self.rows: list[dict[str, Any]] = []
        self.skipped: list[dict[str, Any]] = []
        self.earlier_runs: list[dict[str, Any]] = []

    def go_on(self) -> None:
        """Keep the rows of the run that wrote the file before. What it skipped is tried again.

        InputError where there is no such run, or it is not comparable.
        """
        found = read(self.path)
        comparable(self.path, found, self.facts)
        before = {name: value for name, value in found.items() if name not in LISTS}
        self.earlier_runs = [*found.get("earlier_runs", []), before]
        self.rows = found["rows"]

    def measured(self, record: dict[str, Any]) -> bool:
        """Whether a row for this cell is there."""
        return any(cell_key(row) == cell_key(record) for row in self.rows)

    def add(self, row: dict[str, Any]) -> None:
        """Add a measured cell and write the file. `run` numbers the run that measured it, from 0."""
        self.rows.append({**row, "run": len(self.earlier_runs)})
        self.write()

    def skip(self, record: dict[str, Any], because: str) -> None:
        """Add a cell that was not measured, with the reason, and write the file."""
        self.skipped.append({**record, "skipped": because})
        self.write()

    def write(self) -> None:
        """Replace the file by a whole new one."""
        beside = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        beside.write_text(self.text(), encoding="utf-8")
        beside.replace(self.path)

    def text(self) -> str:
        """JSON with a fact a line and a row a line."""
        parts = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in self.facts.items()]
        for name in LISTS:
            lines = ",\n".join(f"  {json.dumps(item)}" for item in getattr(self, name))
            parts.append(f' "{name}": [\n{lines}\n ]' if lines else f' "{name}": []')
        return "{\n" + ",\n".join(parts) + "\n}\n"


def comparable(path: Path, found: dict[str, Any], facts: dict[str, Any]) -> None:
    """InputError where rows of the file at `path`, with the facts `found`, cannot stand beside those of `facts`."""
    for name in SAME:
        if found.get(name) != facts.get(name):
            raise InputError(
                f"{path} was measured with {name} {found.get(name)!r}, not {facts.get(name)!r}: name another file"
            )


def read(path: Path) -> dict[str, Any]:
    """A result file's content; InputError where it is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is no result file ({error}): name one that a bench has written") from None
    if not isinstance(found, dict) or not isinstance(found.get("rows"), list):
        raise InputError(f"{path} is no result file (no rows): name one that a bench has written")
    runs = found.get("earlier_runs", [])
    if not isinstance(runs, list) or not all(isinstance(run, dict) for run in runs):
        raise InputError(f"{path} is no result file (earlier_runs): name one that a bench has written")
    for row in found["rows"]:
        if (
            not isinstance(row, dict)
            or not set(CELL_KEY) <= set(row)
            or row.get("run", 0) not in range(len(runs) + 1)
        ):
            raise InputError(f"{path} has a row that is no cell's of versus_cublas: name a file of that bench")
    return found
