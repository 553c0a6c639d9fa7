"""Store and read the texts of kernels by paragraphs, each once. Texts of a family have most paragraphs in common.

A text is the paragraphs that the column `source.paragraphs` names, in this order, joined by BREAK.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import chain
from typing import Any

from sqlalchemy import Connection, bindparam, select

from tsm2_tune.tuner.results.domains import MOST_KERNEL, MOST_PARAGRAPHS, Row, checked
from tsm2_tune.tuner.results.storage import schema
from tsm2_tune.tuner.results.storage.sqlite import fetched
from tsm2_tune.tuner.results.upsert import add_once

BREAK = "\n\n"
MOST_SOURCES = 64  # in a statement, with up to MOST_PARAGRAPHS each: SQLite takes 32766 values
KEY_DIGITS = 16  # of the SHA-256; if two paragraphs had equal keys, the digest of the whole text would differ

_PARAGRAPH, _SOURCE = schema.paragraph.c, schema.source.c
_KNOWN = select(_PARAGRAPH.key).where(_PARAGRAPH.key.in_(bindparam("keys", expanding=True)))
_DIGESTS = select(_SOURCE.digest).where(_SOURCE.digest.in_(bindparam("digests", expanding=True)))
_OF_KEYS = select(_PARAGRAPH.key, _PARAGRAPH.text).where(_PARAGRAPH.key.in_(bindparam("keys", expanding=True)))
_OF_DIGESTS = select(schema.source).where(_SOURCE.digest.in_(bindparam("digests", expanding=True)))
_OF_SOURCE = [one.name for one in _SOURCE if one is not _SOURCE.paragraphs]


def add_sources(connection: Connection, digests: Iterable[str], source: Callable[[str], Row]) -> None:
    """Insert the rows of `source` with these digests, unless they exist.

    `source` returns the values of a missing row, and its text as `text`.
    """
    asked = sorted(set(digests))
    for first in range(0, len(asked), MOST_SOURCES):
        some = asked[first : first + MOST_SOURCES]
        known = set(connection.execute(_DIGESTS, {"digests": some}).scalars())
        missing = [source(one) for one in some if one not in known]
        lists = add_texts(connection, [one["text"] for one in missing])
        own = [{name: one[name] for name in _OF_SOURCE} for one in missing]
        add_once(connection, schema.source, [one | {"paragraphs": of} for one, of in zip(own, lists, strict=True)])


def add_texts(connection: Connection, texts: Iterable[str]) -> list[str]:
    """Insert the texts' paragraphs that are not stored. Return the value of `source.paragraphs` of each text."""
    split = [text.split(BREAK, MOST_PARAGRAPHS - 1) for text in texts]
    keys = {one: hashlib.sha256(one.encode()).hexdigest()[:KEY_DIGITS] for one in set(chain.from_iterable(split))}
    by_key = {key: one for one, key in keys.items()}
    known = set(connection.execute(_KNOWN, {"keys": list(by_key)}).scalars())
    missing = sorted(by_key.keys() - known)  # sorted, so that concurrent transactions do not deadlock
    add_once(connection, schema.paragraph, [{"key": key, "text": by_key[key]} for key in missing])
    return [" ".join(map(keys.__getitem__, paragraphs)) for paragraphs in split]


def unused(connection: Connection) -> list[str]:
    """Return the keys of the paragraphs that are in no text."""
    lists = connection.execute(select(_SOURCE.paragraphs)).scalars()
    used = {key for one in lists if isinstance(one, str) for key in one.split(" ")}
    return [key for key in connection.execute(select(_PARAGRAPH.key)).scalars() if key not in used]


class Sources:
    """Some rows of `source` with their texts. They are read together, and each is checked when it is returned."""

    def __init__(self, connection: Connection, digests: Iterable[str]) -> None:
        self._rows, self._texts, asked = dict[str, Row](), dict[str, Any](), list(digests)
        for first in range(0, len(asked), MOST_SOURCES):
            some = {"digests": asked[first : first + MOST_SOURCES]}
            rows, keys = fetched(connection, _OF_DIGESTS, some), set[str]()
            for row in rows:
                with suppress(TypeError, ValueError):
                    keys.update(_keys(row))
            new = {"keys": list(keys - self._texts.keys())}
            self._rows |= {row["digest"]: row for row in rows}
            self._texts |= {row["key"]: row["text"] for row in fetched(connection, _OF_KEYS, new)}

    def row(self, digest: str) -> Row:
        """Return the row of `source` with this digest, and its text as `text`.

        Raise KeyError if there is none. Raise TypeError or ValueError if a paragraph is missing or no text, or all
        too long.
        """
        if digest not in self._rows:
            raise KeyError(f"no source {digest}")
        row = self._rows[digest]
        return {**row, "text": self._text(_keys(row))}

    def _text(self, keys: list[str]) -> str:
        for key in keys:
            if key not in self._texts:
                raise ValueError(f"paragraph {key} of the kernel's text is missing")
            if not isinstance(self._texts[key], str):
                raise TypeError(f"paragraph {key} of the kernel's text is not of type str")
        if sum(len(self._texts[key]) for key in keys) > MOST_KERNEL:
            raise ValueError(f"the kernel's text has more than {MOST_KERNEL} characters")
        return BREAK.join(map(self._texts.__getitem__, keys))


def _keys(row: Row) -> list[str]:
    """Return the keys of the paragraphs of a row of `source`. Raise TypeError or ValueError if they are invalid."""
    keys: str = checked(row, [_SOURCE.paragraphs])["paragraphs"]
    return keys.split(" ")
