"""What `--db` names: a file, a database of a PostgreSQL server, or trials that the package brings.

Messages show no password.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path

from tsm2_tune.errors import StoreError

PREFIX = "pretuned:"  # of the name of trials that the package brings
EXAMPLE = "postgresql+psycopg://user@host/name"
_SCHEME = re.compile(r"([A-Za-z][\w+.-]*)://")
# What is meant for one, though it is spelt otherwise: a scheme after a space or a quote, or with one slash.
_MISTYPED = re.compile(
    r".*://|[^\w./]*[A-Za-z][\w+.-]*\s*:\s*/|[^\w./]*postgres[\w+.-]*\s*(:|;|//).*@", re.IGNORECASE | re.DOTALL
)
_AFTER_SCHEME = re.compile(r"([:;]/*|//).*@", re.DOTALL)  # user and password, wherever one of them begins
# A port that is no number: the password where the @ and the host are missing.
_NO_PORT = re.compile(r"(?<=://)([^:@/?[]*):(?!\d+([/?,]|$))[^@/?]*(?=[/?]|$)")
# From the first colon to the last @: users may have an @ too, and one that was not written %40 hides too much.
_PASSWORD = re.compile(r"(?<=://)([^:]*):.*@", re.DOTALL)
_IN_QUERY = re.compile(r"(\w*(?:password|passfile))=[^&]*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Address:
    """A database of a PostgreSQL server."""

    url: str = field(repr=False)  # with the password

    def __str__(self) -> str:
        return shown_name(self.url)


def shown_name(name: str | PathLike[str]) -> str:
    """The name of a database as messages have it: an address without its password."""
    text = os.fspath(name)
    if _SCHEME.match(text):
        text = _NO_PORT.sub(r"\1:***", _PASSWORD.sub(r"\1:***@", text))
    elif _MISTYPED.match(text):
        text = _AFTER_SCHEME.sub(r"\1***@", text)
    else:
        return text
    return _IN_QUERY.sub(r"\1=***", text)


def is_address(name: str | PathLike[str]) -> bool:
    """Whether it names no file: an address, also a mistyped one."""
    text = os.fspath(name)
    return (_SCHEME.match(text) or _MISTYPED.match(text)) is not None


def is_bundled(name: str | PathLike[str]) -> bool:
    """Whether it names trials that the package brings."""
    return os.fspath(name).lower().startswith(PREFIX)


def place_of(name: str | PathLike[str]) -> Path | Address:
    """What is named. StoreError for an empty name, which Path would take for the working folder, for the address of
    another kind of server, and for trials that the package brings, which are no database that can be written.
    """
    text = os.fspath(name)
    if is_bundled(text):
        raise StoreError(
            f"{text} is only read, by best, show, source, export, report, model and space: to do more, import it:"
            f" tsm2-tune import {text} --db results.db"
        )
    if not text:
        raise StoreError(f"the name of the database is empty: name a file with --db, or {EXAMPLE}")
    if not is_address(text):
        return Path(text)
    scheme = _SCHEME.match(text)
    if scheme is None or scheme[1] not in ("postgresql", "postgresql+psycopg"):
        raise StoreError(f"{shown_name(text)} is no database that this tsm2-tune knows: name a file, or {EXAMPLE}")
    return Address(text)
