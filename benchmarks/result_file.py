"""A benchmark's result file: facts, and one row per cell.

It is rewritten after every cell, so that a killed run loses nothing.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import tsm2_tune
from benchmarks.cells import cell_key
from tsm2_tune.errors import InputError
from tsm2_tune.generator.device.roofline import Ceilings
from tsm2_tune.tuner.compile.pool import cores
from tsm2_tune.tuner.device.target import Target

# Facts that must be equal for the rows of two runs to share a file.
SAME = ("device", "driver", "toolkit", "flags", "cublas", "cublaslt", "tsm2_tune", "sources", "pack")
LISTS = ("earlier_runs", "skipped", "rows")


def sources_digest() -> str:
    """Return a SHA-256 digest of the package's Python files and templates: it identifies the measured kernels."""
    root = Path(tsm2_tune.__file__).parent
    names = sorted(path.relative_to(root).as_posix() for end in ("py", "jinja") for path in root.rglob(f"*.{end}"))
    texts = (name.encode() + b"\0" + (root / name).read_bytes() + b"\0" for name in names)
    return hashlib.sha256(b"".join(texts)).hexdigest()


def program_facts() -> dict[str, str]:
    """Return the facts of the measuring program."""
    return {"tsm2_tune": tsm2_tune.__version__, "sources": sources_digest()}


def device_facts(command: str, target: Target) -> dict[str, Any]:
    """Return the facts of a run: command, date, device, driver, compiler, processor cores, program."""
    identity = target.identity
    return {
        "command": command,
        "date": datetime.now(UTC).date().isoformat(),
        "device": identity.name,
        "driver": identity.driver,
        "toolkit": identity.toolkit,
        "flags": identity.flags,
        "cores": cores(),
        **program_facts(),
    }


def run_facts(command: str, target: Target, ceilings: Ceilings) -> dict[str, Any]:
    """Return the facts of a run with the device's measured peak rates."""
    rates = {"read_gbytes_per_s": ceilings.read_gbytes_per_s, "copy_gbytes_per_s": ceilings.copy_gbytes_per_s}
    return device_facts(command, target) | rates | {"gflops": dict(ceilings.gflops)}


def write_json(output: Path, found: Mapping[str, Any]) -> None:
    """Write facts and rows to a file."""
    output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


class ResultFile:
    """The facts of a run, the rows of its cells, and the skipped cells. Each change rewrites the file."""

    def __init__(self, path: Path, facts: dict[str, Any]) -> None:
        self.path, self.facts = path, facts
        self.rows: list[dict[str, Any]] = []
        self.skipped: list[dict[str, Any]] = []
        self.earlier_runs: list[dict[str, Any]] = []

    def go_on(self) -> None:
        """Keep the rows that an earlier run wrote to the file. Its skipped cells are tried again.

        Raise InputError if the file is invalid, or if that run is not comparable with this one.
        """
        found = read(self.path)
        comparable(self.path, found, self.facts)
        before = {name: value for name, value in found.items() if name not in LISTS}
        self.earlier_runs = [*found["earlier_runs"], before]
        self.rows = found["rows"]

    def measured(self, record: dict[str, Any]) -> bool:
        """Return whether the file has a row for this cell."""
        return any(cell_key(row) == cell_key(record) for row in self.rows)

    def add(self, row: dict[str, Any]) -> None:
        """Add a measured cell, and write the file. `run` is the number of the run that measured it, from 0."""
        self.rows.append({**row, "run": len(self.earlier_runs)})
        self.write()

    def skip(self, record: dict[str, Any], because: str) -> None:
        """Add a cell that was not measured, with the reason, and write the file."""
        self.skipped.append({**record, "skipped": because})
        self.write()

    @property
    def content(self) -> dict[str, Any]:
        """The content of the file."""
        return {**self.facts, **{name: getattr(self, name) for name in LISTS}}

    def write(self) -> None:
        """Replace the whole file."""
        beside = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            beside.write_text(self.text(), encoding="utf-8")
            beside.replace(self.path)
        except OSError:
            beside.unlink(missing_ok=True)
            raise

    def text(self) -> str:
        """Return the file's JSON, with one line per fact and per row."""
        parts = []
        for name, value in self.content.items():
            lines = ",\n".join(f"  {json.dumps(item)}" for item in value) if name in LISTS else ""
            parts.append(f' "{name}": [\n{lines}\n ]' if lines else f" {json.dumps(name)}: {json.dumps(value)}")
        return "{\n" + ",\n".join(parts) + "\n}\n"


def require_folder(path: Path) -> None:
    """Raise InputError if the folder of the file does not exist: check it before a long run."""
    if not path.absolute().parent.is_dir():
        raise InputError(f"{path} is in no folder that exists: make it first or name another file")


def require_new(path: Path, remedy: str = "name another --output") -> None:
    """Raise InputError if the file exists, so that a run does not overwrite hours of measurements."""
    require_folder(path)
    if path.suffix == ".xz":
        raise InputError(f"{path}: results are written as JSON: name a file without .xz, and compress it afterwards")
    if path.exists():
        raise InputError(f"{path} exists: {remedy}")


def comparable(path: Path, found: dict[str, Any], facts: dict[str, Any]) -> None:
    """Raise InputError if rows of the file at `path` are not comparable with this run.

    `found` contains the file's facts, and `facts` this run's. They must agree in the fields SAME.
    """
    for name in SAME:
        if found.get(name) != facts.get(name):
            raise InputError(
                f"{path} was measured with {name} {found.get(name)!r}, not {facts.get(name)!r}: name another file"
            )


def read(path: Path) -> dict[str, Any]:
    """Return the JSON of a file, which may be compressed (.xz). Raise InputError for a file without rows."""
    opened = lzma.open if path.suffix == ".xz" else open
    try:
        with opened(path, "rt", encoding="utf-8") as file:
            found: dict[str, Any] = json.load(file)
        _ = found["rows"]
    except (OSError, EOFError, ValueError, LookupError, TypeError, lzma.LZMAError) as error:
        raise InputError(f"{path} is no result file ({error}): name one that a bench has written") from None
    return {"earlier_runs": [], "skipped": [], **found}
