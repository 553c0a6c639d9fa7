"""Texts from anywhere, as a terminal may show them."""

from __future__ import annotations

import re

# What a terminal would obey instead of showing it: controls but for newline; and what it does not show: line ends of
# Unicode, marks and changes of direction, characters without a width, tags.
_CONTROLS = re.compile(
    "[\\x00-\\x09\\x0b-\\x1f\\x7f-\\x9f\\xad\\u061c\\u180e\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f"
    "\\ufeff\\ufff9-\\ufffb\\U000e0000-\\U000e007f]"
)
_HALVES = re.compile("[\\ud800-\\udfff]")  # of characters: bytes of a path that are no UTF-8 come as such


def printable(text: str) -> str:
    """The text without what a terminal would obey: a database may be from anywhere. Tabs are spaces."""
    return _CONTROLS.sub("", _HALVES.sub(lambda half: ascii(half[0])[1:-1], text.replace("\t", "    ")))


def one_line(text: str, characters: int = 160) -> str:
    """The text's first line; where it is long, its first words."""
    line = text.strip().splitlines()[0] if text.strip() else ""
    if len(line) <= characters:
        return line
    return f"{line[:characters].rpartition(' ')[0] or line[: characters - 1]}…"
