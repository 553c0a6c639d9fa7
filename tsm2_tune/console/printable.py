"""Remove control characters from texts before they are printed on a terminal."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from typing import Any

import click

# Control characters except newline, and invisible characters: Unicode line ends, changes of direction, characters
# without a width, tags.
_CONTROLS = re.compile(
    "[\\x00-\\x09\\x0b-\\x1f\\x7f-\\x9f\\xad\\u061c\\u180e\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f"
    "\\ufeff\\ufff9-\\ufffb\\U000e0000-\\U000e007f]"
)
_HALVES = re.compile("[\\ud800-\\udfff]")  # surrogates, to which Python decodes bytes of a path that are not UTF-8


def printable(text: str) -> str:
    """Return the text without control and invisible characters, which could send commands to the terminal."""
    return _CONTROLS.sub("", _HALVES.sub(lambda half: ascii(half[0])[1:-1], text.replace("\t", "    ")))


def one_line(text: str, characters: int = 160) -> str:
    """Return the text's first line. If it is longer than `characters`, cut it between words and append "…"."""
    line = text.strip().splitlines()[0] if text.strip() else ""
    if len(line) <= characters:
        return line
    return f"{line[:characters].rpartition(' ')[0] or line[: characters - 1]}…"


def fields(value: object, names: str) -> dict[str, Any]:
    """Return these attributes for JSON, a problem or configuration as its text. All are None if the value is None."""
    found = {name: None if value is None else getattr(value, name) for name in names.split()}
    return {name: getattr(one, "text", one) for name, one in found.items()}


def print_json(facts: object) -> None:
    """Print the facts as JSON. A dataclass is printed as an object of its fields."""
    click.echo(json.dumps(facts, indent=2, default=asdict))


def tell(sentence: str) -> None:
    """Print a sentence on standard error as one line."""
    from tsm2_tune.tuner.results.trial import in_a_line  # slow to import, and `--help` does not need it

    click.echo(in_a_line(sentence), err=True)
