"""Shared objects that are built once a test run, of C that is compiled once: many tests are given equal ones."""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from tsm2_tune.tuner.compile import shared_objects
from tsm2_tune.tuner.compile.shared_objects import shared_object

Command = Callable[[Path, Path], list[str]]


def keep_objects(setattr: Callable[[object, str, object], None], folder: Path) -> None:
    """Have libraries and launchers that were built taken from the folder, from now on."""
    setattr(shared_objects, "shared_object", partial(kept, folder))


def kept(folder: Path, files: Mapping[str, bytes], command: Command, what: str) -> bytes:
    """Return what `shared_object` makes of the files, and reuse it for equal files and an equal command."""
    place = folder / digest_of(sorted(files.items()), command(folder, folder / what))
    if not place.exists():
        keep(place, shared_object(files, partial(linking, folder, files, command), what))
    return place.read_bytes()


def digest_of(*facts: object) -> str:
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def keep(place: Path, content: bytes) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=place.parent, delete=False) as file:
        file.write(content)
    Path(file.name).rename(place)  # whole, whoever reads it meanwhile


def linking(folder: Path, files: Mapping[str, bytes], command: Command, work: Path, output: Path) -> list[str]:
    """The command, with objects of the folder in place of sources that were compiled before."""
    line = command(work, output)
    headers = sorted(one for one in files.items() if one[0].endswith(".h"))
    flags = line[: line.index("-o")]
    for at in [at for at, word in enumerate(line) if word == "c" and line[at - 1] == "-x"]:
        source = Path(line[at + 1])
        if b".incbin" in files[source.name]:  # it depends on more than headers
            continue
        of_any_folder = [word.replace(str(work), "") for word in flags]
        place = folder / f"{digest_of(headers, source.name, files[source.name], of_any_folder)}.o"
        if not place.exists():
            made = work / "kept.o"
            compiling = [*flags, "-c", "-x", "c", str(source), "-o", str(made)]
            if subprocess.run(compiling, capture_output=True, check=False).returncode or not made.exists():
                return command(work, output)  # which tells what is wrong
            keep(place, made.read_bytes())
        line[at : at + 2] = ["none", str(place)]
    return line
