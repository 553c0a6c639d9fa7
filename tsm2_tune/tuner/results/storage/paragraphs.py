"""Store the texts of kernels by paragraphs, each paragraph once. Texts of a family have most paragraphs in common.

A text is the paragraphs that the column `source.paragraphs` names, in this order, joined by BREAK.
"""

from __future__ import annotations

import hashlib
from collections import Counter

from sqlalchemy import Connection, bindparam, select

from tsm2_tune.tuner.results.domains import MOST_KERNEL, MOST_PARAGRAPHS
from tsm2_tune.tuner.results.storage import schema
from tsm2_tune.tuner.results.upsert import add_once
from tsm2_tune.tuner.results.validation import Row, checked

BREAK = "\n\n"
KEY_DIGITS = 16  # of the SHA-256; if two paragraphs had equal keys, the digest of the whole text would differ

_PARAGRAPH, _SOURCE = schema.paragraph.c, schema.source.c
_OF_KEYS = select(_PARAGRAPH.key, _PARAGRAPH.text).where(_PARAGRAPH.key.in_(bindparam("keys", expanding=True)))
_KNOWN = select(_PARAGRAPH.key).where(_PARAGRAPH.key.in_(bindparam("keys", expanding=True)))
_OF_DIGEST = select(schema.source).where(_SOURCE.digest == bindparam("digest"))


def source_row(connection: Connection, digest: str) -> Row:
    """Return the row of `source` with this digest, and its text as `text`.

    Raise KeyError if there is none. Raise TypeError or ValueError if a paragraph is missing or no text, or all too
    long.
    """
    row = connection.execute(_OF_DIGEST, {"digest": digest}).mappings().first()
    if row is None:
        raise KeyError(f"no source {digest}")
    return {**row, "text": _text(connection, checked(row, [_SOURCE.paragraphs])["paragraphs"].split(" "))}


def add_source(connection: Connection, values: Row) -> None:
    """Insert a row of `source` with these values and the text `text`, unless a row with its digest exists."""
    if connection.execute(_OF_DIGEST, {"digest": values["digest"]}).first() is None:
        row = {one.name: values[one.name] for one in _SOURCE if one is not _SOURCE.paragraphs}
        add_once(connection, schema.source, {**row, "paragraphs": add_text(connection, values["text"])})


def add_text(connection: Connection, text: str) -> str:
    """Insert the paragraphs of the text that are not stored. Return the value of `source.paragraphs`."""
    paragraphs = text.split(BREAK, MOST_PARAGRAPHS - 1)
    keys = [hashlib.sha256(one.encode()).hexdigest()[:KEY_DIGITS] for one in paragraphs]
    by_key = dict(zip(keys, paragraphs, strict=True))
    known = set(connection.execute(_KNOWN, {"keys": list(by_key)}).scalars())
    for key in sorted(by_key.keys() - known):  # sorted, so that concurrent transactions do not deadlock
        add_once(connection, schema.paragraph, {"key": key, "text": by_key[key]})
    return " ".join(keys)


def unused(connection: Connection) -> list[str]:
    """Return the keys of the paragraphs that are in no text."""
    lists = connection.execute(select(_SOURCE.paragraphs)).scalars()
    used = {key for one in lists if isinstance(one, str) for key in one.split(" ")}
    return [key for key in connection.execute(select(_PARAGRAPH.key)).scalars() if key not in used]


def _text(connection: Connection, keys: list[str]) -> str:
    """Return the text of the paragraphs with these keys. Raise TypeError or ValueError if it is damaged."""
    found, characters, counts = dict[str, str](), 0, Counter(keys)
    for key, text in connection.execute(_OF_KEYS, {"keys": list(counts)}):
        if not isinstance(text, str):
            raise TypeError(f"paragraph {key} of the kernel's text is not of type str")
        found[key] = text
        characters += len(text) * counts[key]
        if characters > MOST_KERNEL:
            raise ValueError(f"the kernel's text has more than {MOST_KERNEL} characters")
    missing = [key for key in keys if key not in found]
    if missing:
        raise ValueError(f"paragraph {missing[0]} of the kernel's text is missing")
    return BREAK.join(found[key] for key in keys)
