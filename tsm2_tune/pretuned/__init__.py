"""Pretuned kernels: files of trials (JSON lines) in the package, which were measured on real GPUs.

Their `version` 0.1.0 is the development version that measured them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from tsm2_tune.errors import InputError, nearest_name

PREFIX, SUFFIX = "pretuned:", ".jsonl"  # "pretuned:h200" names the file h200.jsonl
FOLDER = resources.files(__name__)


@dataclass(frozen=True, slots=True)
class Pretuned:
    """A file of trials of one GPU model in the package."""

    name: str  # for example h200
    device_name: str  # as the CUDA driver names the device
    compute_capability: str  # "9.0"
    file: Traversable

    @contextmanager
    def path(self) -> Iterator[Path]:
        """Yield a path of the file on disk. It may be a temporary copy that is deleted afterwards."""
        with resources.as_file(self.file) as path:
            yield path


def pretuned() -> tuple[Pretuned, ...]:
    """Return all files of trials in the package, sorted by name."""
    files = (file for file in FOLDER.iterdir() if file.name.endswith(SUFFIX))
    return tuple(_read(file) for file in sorted(files, key=lambda file: file.name))


def without_gpu() -> str:
    """Return the end of an error message that a GPU is missing: the command that needs none, with its cards."""
    return (
        f"to estimate times without a GPU: tsm2-tune predict --device {' or '.join(one.name for one in pretuned())}"
    )


def _read(file: Traversable) -> Pretuned:
    """Read the description of a file of trials. Its first line names the fields; its second contains the device."""
    with file.open(encoding="utf-8") as lines:
        head, tools = json.loads(lines.readline()), json.loads(lines.readline())
    values = dict(zip(head["lines"]["tools"], tools[1:], strict=True))
    return Pretuned(file.name.removesuffix(SUFFIX), values["device_name"], values["compute_capability"], file)


def pretuned_named(source: str) -> Pretuned:
    """Return the file of trials that `source` names, such as "pretuned:h100". Raise InputError if there is none."""
    known = {PREFIX + one.name: one for one in pretuned()}
    if source.lower() not in known:
        raise InputError(f"unknown {source!r}: the package has {', '.join(known) or 'none'}")
    return known[source.lower()]


@contextmanager
def named(source: str) -> Iterator[Path]:
    """Yield the path of the file that `source` names: a pretuned file such as "pretuned:h200", or a path.

    "pretuned:" and the name are not case-sensitive. Raise InputError if `source` is empty or contains a line end, if
    the package has no such file, or if a pretuned file was probably meant.
    """
    if not source:
        raise InputError("the name of the file is empty: name a database or a file of trials")
    if "\n" in source:
        raise InputError(
            "the argument is the content of a file of trials, not its name: write it to a file, and name the file"
        )
    if source.lower().startswith(PREFIX):
        with pretuned_named(source).path() as path:
            yield path
        return
    if not os.path.lexists(source) and (hint := meant(source)):
        raise InputError(f"no file {source}: {hint}")
    yield Path(source)


def meant(name: str) -> str:
    """Return a question that names the pretuned files meant by `name`, such as h100 or pretuned:h10; else ""."""
    names = [one.name for one in pretuned()]
    card = name.lower().removeprefix(PREFIX).removesuffix(SUFFIX)
    near = names if card == PREFIX.rstrip(":") else [card] if card in names else []
    if not near and name.lower().startswith(PREFIX):
        near = [one for one in [nearest_name(card, names)] if one]
    which = " or ".join(PREFIX + one for one in near)
    return which and f"did you mean {which}, the pretuned kernels?"


def for_card(device_name: str, compute_capability: str) -> Pretuned | None:
    """Return the pretuned trials of a GPU model, or of another model with the same compute capability, else None."""
    every = pretuned()
    own = [one for one in every if one.device_name == device_name]
    sisters = [one for one in reversed(every) if one.compute_capability == compute_capability]
    return next(iter((*own, *sisters)), None)
