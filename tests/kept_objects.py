"""Shared objects that are built once a test run: many tests are given equal ones."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from tsm2_tune.tuner.export import compiled, library
from tsm2_tune.tuner.shared_objects import shared_object

Command = Callable[[Path, Path], list[str]]


def keep_objects(setattr: Callable[[object, str, object], None], folder: Path) -> None:
    """Have libraries and launchers that were built taken from the folder, from now on."""
    for module in (library, compiled):
        setattr(module, "shared_object", partial(kept, folder))


def kept(folder: Path, files: Mapping[str, bytes], command: Command, what: str) -> bytes:
    """What `shared_object` makes of equal files by an equal command."""
    digest = hashlib.sha256(repr((sorted(files.items()), command(folder, folder / what))).encode()).hexdigest()
    place = folder / digest
    if not place.exists():
        made = shared_object(files, command, what)
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            file.write(made)
        Path(file.name).rename(place)  # whole, whoever reads it meanwhile
    return place.read_bytes()
