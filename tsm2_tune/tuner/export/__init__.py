"""Winners -> a Python module, tables, a C header."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tsm2_tune.errors import InputError, ToolMissing
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import KernelSource
from tsm2_tune.tuner.export.binaries import compiled_cubins
from tsm2_tune.tuner.export.header import header_text
from tsm2_tune.tuner.export.module import Cubins, module_text
from tsm2_tune.tuner.export.tables import csv_text, json_text, latex_text, markdown_text
from tsm2_tune.tuner.store import Store
from tsm2_tune.tuner.stored import BestRow

Export = Callable[[Sequence[BestRow], Mapping[int, KernelSource], str], str]

FORMATS: dict[str, Export] = {
    "module": module_text,
    "csv": csv_text,
    "json": json_text,
    "markdown": markdown_text,
    "latex": latex_text,
    "header": header_text,
}
WITH_KERNELS = ("module", "header")  # whose kernels, or how they are started, are a part


def export_text(
    rows: Sequence[BestRow],
    format_name: str,
    *,
    sources: Mapping[int, KernelSource],
    database: str,
    cubins: Cubins | None = None,
) -> str:
    """The winners in one of FORMATS. `sources` maps their trials, `database` says where they come from; `cubins` are
    for a module.

    InputError for an unknown format, or without winners.
    """
    if format_name not in FORMATS:
        raise InputError(f"unknown format {format_name!r}: expected one of {', '.join(FORMATS)}")
    if not rows:
        raise InputError(f"nothing to export: {database} has no winner of what was asked for; tune it first")
    if format_name == "module":
        return module_text(rows, sources, database, cubins)
    return FORMATS[format_name](rows, sources, database)


def _all(problem: Problem) -> bool:
    return True


def export(
    store: Store,
    format_name: str,
    *,
    device: str | None = None,
    chosen: Callable[[Problem], bool] = _all,
    binaries: bool = False,
    tell: Callable[[str], None] = lambda sentence: None,
) -> str:
    """The store's winners, or only this device's and those of chosen problems, in one of FORMATS.

    With `binaries` a module holds those of its kernels; why one is missing is told. InputError without winners;
    StoreError where the format holds kernels and one is not as this program makes it.
    """
    rows = [row for row in store.best(device=device) if chosen(row.problem)]
    sources = store.sources(rows) if format_name in WITH_KERNELS else {}
    cubins: Cubins = {}
    if binaries and format_name == "module":
        try:
            cubins, missing = compiled_cubins(rows, sources)
        except ToolMissing as error:
            missing = [str(error)]
        for why in missing:
            tell(f"no binary: {why.rstrip('.')}; the module compiles at the first call")
    return export_text(rows, format_name, sources=sources, database=str(store.path), cubins=cubins)


def refuse_database(output: str | Path, database: str | Path) -> None:
    """InputError where `output` is the database, or a file that SQLite keeps beside it."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        path = os.path.realpath(database) + suffix
        same = os.path.exists(path) and os.path.exists(output) and os.path.samefile(path, output)
        if same or os.path.realpath(output) == path:
            raise InputError(f"cannot write {output}: it is part of the database {database}; name another --output")


def write(text: str, output: str | Path) -> None:
    """Put the text into the file `output`, whole or not at all; into a device or a pipe it is written as it comes.

    InputError where it cannot be written.
    """
    path, temporary = Path(os.path.realpath(output)), None  # a link keeps pointing where it points
    try:
        if path.exists() and not path.is_file():
            with path.open("w", encoding="utf-8", newline="") as device:
                device.write(text)
            return
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", newline="", dir=path.parent, prefix=f".{path.name}.", delete=False
        ) as file:
            temporary = Path(file.name)
            file.write(text)
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except OSError as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        raise InputError(
            f"cannot write {path} ({error.strerror}): name a file in a folder that is there and writable"
        ) from error


def _umask() -> int:
    """The permissions that this process withholds from new files; it can only be read by setting it."""
    umask = os.umask(0)
    os.umask(umask)
    return umask
