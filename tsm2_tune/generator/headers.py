"""Replace each `#include` with the header from `tsm2_tune/kernels/`, so that a kernel is a single CUDA text."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

ELEMENT_TYPES = ("complex.cuh", "bfloat16.cuh", "float16.cuh")  # inserted before constants of these types
BEGIN, END = "\n// Shared device headers; this kernel is at the end.\n", "// This kernel.\n\n"
_INCLUDE = re.compile(r'^#include "([\w/]+\.cuh)"\n', re.MULTILINE)
_FOLDER = files("tsm2_tune") / "kernels"


def with_headers(text: str) -> str:
    """Return the CUDA text with each header that it includes, directly or indirectly, inserted once.

    The header of the element type replaces the `#include` that names it. All other headers are inserted together, at
    the first of the other `#include`s.
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
    """Return the text of a header without its `#include`s."""
    return _INCLUDE.sub("", _read(name).removeprefix("#pragma once\n"))


def _needed(text: str) -> dict[str, None]:
    """Return the names of the headers that the text includes, directly or indirectly.

    The headers that a header includes come before it.
    """
    known = dict[str, None]()
    for name in _INCLUDE.findall(text):
        known |= _needed_by(name)
    return known


@cache
def _needed_by(name: str) -> dict[str, None]:
    """Return the names of the headers that the header `name` includes, directly or indirectly, and then `name`."""
    return _needed(_read(name)) | {name: None}


@cache
def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")
