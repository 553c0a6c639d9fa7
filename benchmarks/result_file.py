"""A benchmark's result file: facts, and one row per cell.

It is rewritten after every cell, so that a killed run loses nothing.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import tsm2_tune
from benchmarks.cells import CELL_KEY, LAYOUTS, REGIMES, cell_key
from tsm2_tune.errors import InputError
from tsm2_tune.generator.device.roofline import Ceilings
from tsm2_tune.generator.problem import DTYPES
from tsm2_tune.tuner.device.target import Target

# Facts that must be equal for the rows of two runs to share a file.
SAME = ("device", "driver", "toolkit", "flags", "cublas", "cublaslt", "tsm2_tune", "sources", "pack")
LISTS = ("earlier_runs", "skipped", "rows")
MOST = 1e15  # limit of the numbers in a row
MOST_BYTES = 1 << 28  # of a compressed file's content


def is_number(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value < MOST


def is_time(value: Any) -> bool:  # None if a library lacks the product
    return value is None or is_number(value)


def is_extent(value: Any) -> bool:
    return type(value) is int and 0 < value < MOST


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


# Facts of a run and of a row that tables, pictures and later runs need, each with a test of its value.
FACTS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("command", "date", "device", "driver", "toolkit"), is_text),
    **dict.fromkeys(("read_gbytes_per_s", "copy_gbytes_per_s"), is_number),
    "cublas": is_time,  # None without cuBLAS
    "gflops": lambda value: isinstance(value, dict) and all(is_number(value.get(name)) for name in ("f32", "f64")),
}
FIELDS: dict[str, Callable[[Any], bool]] = {
    "regime": lambda value: value in REGIMES,
    "layout": lambda value: value in LAYOUTS,
    "dtype": lambda value: isinstance(value, str) and value in DTYPES,
    **dict.fromkeys(("m", "n", "k"), is_extent),
    **dict.fromkeys(("op", "configuration", "verdict"), is_text),
    **dict.fromkeys(("small", "verified"), _is_flag),
    **dict.fromkeys(("ours_us", "floor_us", "percent_of_floor"), is_number),
    **dict.fromkeys(("ours_low_us", "ours_high_us"), is_number),
    **dict.fromkeys((f"{who}{one}_us" for who in ("cublas", "cublaslt") for one in ("", "_low", "_high")), is_time),
    "sm_clock_mhz": is_time,
}
DIRTY_FIELDS: dict[str, Callable[[Any], bool]] = {  # a row has all of these fields or none
    **dict.fromkeys((f"ours_dirty{one}_us" for one in ("", "_low", "_high")), is_number),
    **dict.fromkeys(
        (f"{who}_dirty{one}_us" for who in ("cublas", "cublaslt") for one in ("", "_low", "_high")), is_time
    ),
}
GRAPH_FIELDS = ("ours_graph_us", "cublas_graph_us", "launch_floor_us")  # a row has all of these fields or none


def sources_digest() -> str:
    """Return a SHA-256 digest of the package's Python files and templates: it identifies the measured kernels."""
    root = Path(tsm2_tune.__file__).parent
    names = sorted(path.relative_to(root).as_posix() for end in ("py", "jinja") for path in root.rglob(f"*.{end}"))
    texts = (name.encode() + b"\0" + (root / name).read_bytes() + b"\0" for name in names)
    return hashlib.sha256(b"".join(texts)).hexdigest()


def program_facts() -> dict[str, str]:
    """Return the facts of the measuring program."""
    return {"tsm2_tune": tsm2_tune.__version__, "sources": sources_digest()}


def run_facts(command: str, target: Target, ceilings: Ceilings) -> dict[str, Any]:
    """Return the facts of a run: command, date, device, driver, compiler, program, measured peak rates."""
    identity = target.identity
    return {
        "command": command,
        "date": datetime.now(UTC).date().isoformat(),
        "device": identity.name,
        "driver": identity.driver,
        "toolkit": identity.toolkit,
        "flags": identity.flags,
        **program_facts(),
        "read_gbytes_per_s": ceilings.read_gbytes_per_s,
        "copy_gbytes_per_s": ceilings.copy_gbytes_per_s,
        "gflops": dict(ceilings.gflops),
    }


class ResultFile:
    """The facts of a run, the rows of its cells, and the skipped cells. Each change rewrites the file."""

    def __init__(self, path: Path, facts: dict[str, Any]) -> None:
        refuse_compressed(path)
        self.path, self.facts = path, facts
        self.rows: list[dict[str, Any]] = []
        self.skipped: list[dict[str, Any]] = []
        self.earlier_runs: list[dict[str, Any]] = []

    def go_on(self, reader: Callable[[Path], dict[str, Any]] | None = None) -> None:
        """Keep the rows that an earlier run wrote to the file. Its skipped cells are tried again.

        `reader` reads the file; the default is `read`. Raise InputError if the file is invalid, or if that run is not
        comparable with this one.
        """
        found = (reader or read)(self.path)
        comparable(self.path, found, self.facts)
        before = {name: value for name, value in found.items() if name not in LISTS}
        self.earlier_runs = [*found.get("earlier_runs", []), before]
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
    def lists(self) -> dict[str, list[dict[str, Any]]]:
        """Return the members of the file that are lists; all others are facts."""
        return {name: getattr(self, name) for name in LISTS}

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
        parts = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in self.facts.items()]
        for name, items in self.lists.items():
            lines = ",\n".join(f"  {json.dumps(item)}" for item in items)
            parts.append(f' "{name}": [\n{lines}\n ]' if lines else f' "{name}": []')
        return "{\n" + ",\n".join(parts) + "\n}\n"


def require_folder(path: Path) -> None:
    """Raise InputError if the folder of the file does not exist: check it before a long run."""
    if not path.absolute().parent.is_dir():
        raise InputError(f"{path} is in no folder that exists: make it first or name another file")


def refuse_compressed(path: Path) -> None:
    """Raise InputError if the file's name is that of a compressed one, which can only be read."""
    if path.suffix == ".xz":
        raise InputError(f"{path}: results are written as JSON: name a file without .xz, and compress it afterwards")


def require_new(path: Path, remedy: str) -> None:
    """Raise InputError if the file exists, so that a run does not overwrite hours of measurements."""
    require_folder(path)
    refuse_compressed(path)
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


def _decompressed(content: bytes) -> bytes:
    """Return the bytes that xz compressed. Raise LZMAError for other content, and for more than MOST_BYTES."""
    decompressor = lzma.LZMADecompressor(lzma.FORMAT_XZ)
    found = decompressor.decompress(content, MOST_BYTES)
    if not decompressor.eof:
        raise lzma.LZMAError(f"it is cut off, or has more than {MOST_BYTES} bytes")
    return found


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON of a file, which may be compressed (.xz). It must have rows; runs and skips are optional.

    Raise InputError for another file.
    """
    try:
        found = json.loads(_decompressed(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes())
    except (OSError, ValueError, RecursionError, lzma.LZMAError) as error:
        raise InputError(f"{path} is no result file ({error}): name one that a bench has written") from None
    if not isinstance(found, dict) or not isinstance(found.get("rows"), list):
        raise InputError(f"{path} is no result file (no rows): name one that a bench has written")
    if not all(isinstance(found.get(name, []), list) for name in LISTS):
        raise InputError(f"{path} is no result file (earlier_runs, skipped): name one that a bench has written")
    return found


def read(path: Path) -> dict[str, Any]:
    """Return the content of a result file. Raise InputError for another file."""
    found = read_json(path)
    runs, skipped = found.get("earlier_runs", []), found.get("skipped", [])
    for run in (*runs, found):
        if (unusable := unusable_field(run, FACTS)) is not None:
            raise InputError(f"{path} has no usable {unusable} of a run: name a file of versus_cublas")
    graphs = {**FIELDS, **dict.fromkeys(GRAPH_FIELDS, is_time)}
    of_a_run = {"run": lambda value: type(value) is int and 0 <= value <= len(runs)}
    for number, row in enumerate(found["rows"], start=1):
        has_graphs = isinstance(row, dict) and not set(GRAPH_FIELDS).isdisjoint(row)
        has_dirty = isinstance(row, dict) and not DIRTY_FIELDS.keys().isdisjoint(row)
        fields = (graphs if has_graphs else FIELDS) | (DIRTY_FIELDS if has_dirty else {})
        if (unusable := unusable_field(row, fields | of_a_run)) is not None:
            raise InputError(
                f"{path} has no usable {unusable} in row {number}: name a file of versus_cublas, or take the row out"
            )
    of_a_cell = {name: FIELDS[name] for name in CELL_KEY}
    if any(unusable_field(cell, of_a_cell) is not None for cell in skipped):
        raise InputError(f"{path} is no result file (skipped): name one that a bench has written")
    return found


def unusable_field(record: Any, checks: Mapping[str, Callable[[Any], bool]]) -> str | None:
    """Return the first field that is missing or fails its check, or None."""
    if not isinstance(record, dict):
        return "fields"
    return next((name for name, check in checks.items() if name not in record or not check(record[name])), None)
