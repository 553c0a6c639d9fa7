"""The device headers of `tsm2_tune/kernels/` in a CUDA text, each once: a kernel is one text."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

ELEMENT_TYPES = ("complex.cuh", "bfloat16.cuh", "float16.cuh")  # before the constants, some of which need them
BEGIN, END = "\n// What kernels share, header by header.\n", "// This kernel.\n\n"
_INCLUDE = re.compile(r'^#include "([\w/]+\.cuh)"\n', re.MULTILINE)
_FOLDER = files("tsm2_tune") / "kernels"


def with_headers(text: str) -> str:
    """Return the text with its includes replaced by the headers, nested headers too.

    All headers go where the first include was. Only the header of the element type goes where its own include was.
    """
    text = _INCLUDE.sub(lambda found: header(found[1]) if found[1] in ELEMENT_TYPES else found[0], text)
    shared = "\n".join((BEGIN, *(f"// {name.rpartition('/')[2]}\n{header(name)}" for name in _needed(text)), END))
    places = iter((shared,))
    text = _INCLUDE.sub(lambda found: next(places, ""), text)
    while "\n\n\n" in text:
        text = text.replace("\n\n\n", "\n\n")
    return text


@cache
def header(name: str) -> str:
    """Return the header's own text, without those that it includes."""
    return _INCLUDE.sub("", _read(name).removeprefix("#pragma once\n"))


def _needed(text: str) -> dict[str, None]:
    """Return the names of the headers that the text needs, those first that others need."""
    known = dict[str, None]()
    for name in _INCLUDE.findall(text):
        known |= _needed_by(name)
    return known


@cache
def _needed_by(name: str) -> dict[str, None]:
    """Return the header with those that it needs, which come first."""
    return _needed(_read(name)) | {name: None}


@cache
def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")
