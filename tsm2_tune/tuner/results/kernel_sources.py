"""Read the sources of kernels, whose texts are stored by paragraphs: see `storage/paragraphs.py`."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from sqlalchemy import Connection, bindparam, select

from tsm2_tune.tuner.results.domains import MOST_KERNEL
from tsm2_tune.tuner.results.storage import schema
from tsm2_tune.tuner.results.storage.database import fetched
from tsm2_tune.tuner.results.storage.paragraphs import BREAK, MOST_SOURCES
from tsm2_tune.tuner.results.validation import Row, checked

_SOURCE, _PARAGRAPH = schema.source.c, schema.paragraph.c
_OF_KEYS = select(_PARAGRAPH.key, _PARAGRAPH.text).where(_PARAGRAPH.key.in_(bindparam("keys", expanding=True)))
_OF_DIGESTS = select(schema.source).where(_SOURCE.digest.in_(bindparam("digests", expanding=True)))


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
