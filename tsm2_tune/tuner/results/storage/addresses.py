"""Parse the value of `--db`: the path of a database or of a file of trials, the address of a PostgreSQL database, or
a name such as pretuned:h100.

Error messages never contain a password.
"""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from urllib.parse import unquote

from tsm2_tune.errors import StoreError

DEFAULT_DATABASE = "results.db"
PREFIX = "pretuned:"  # begins the names of results that the package contains
TEXT_SUFFIX = ".jsonl"  # ends the name of a file of trials
TEXT_FORMAT = "tsm2-tune trials"  # in the first line of a file of trials
TEXT_BEGIN = f'{{"{TEXT_FORMAT}":'  # the beginning of a file of trials
EXAMPLE = "postgresql+psycopg://user@host/name"
_SCHEME = re.compile(r"([A-Za-z][\w+.-]*)://")
# A mistyped address: its scheme follows a space or a quote, or has only one slash.
_MISTYPED = re.compile(
    r".*://|[^\w./]*[A-Za-z][\w+.-]*\s*:\s*/|[^\w./]*postgres[\w+.-]*\s*(:|;|//).*@", re.IGNORECASE | re.DOTALL
)
_AFTER_SCHEME = re.compile(r"([:;]/*|//).*@", re.DOTALL)  # user and password after a scheme
# A port that is not a number. It is a password if the @ and the host are missing.
_NO_PORT = re.compile(r"(?<=://)([^:@/?[]*):(?!\d+([/?,]|$))[^@/?]*(?=[/?]|$)")
# From the first colon to the last @, since a password may contain an @. It hides too much rather than too little.
_PASSWORD = re.compile(r"(?<=://)([^:]*):.*@", re.DOTALL)
# Parameters of libpq whose values may be shown. All others are treated as secret.
_SHOWN = frozenset(
    re.findall(
        r"\w+",
        "host hostaddr port user dbname service connect_timeout application_name client_encoding target_session_attrs"
        " sslmode sslnegotiation sslcert sslkey sslrootcert sslcrl channel_binding require_auth gssencmode krbsrvname"
        " keepalives keepalives_idle keepalives_interval keepalives_count tcp_user_timeout load_balance_hosts",
    )
)
_PARAMETER = re.compile(r"([^?&;#=]*)=([^&;#]*)")
# A connection string, for example "host=h dbname=n". It is not the name of a file, and may have a password.
_KEYWORDS = re.compile(
    rf"(?:^|[\s'\"])({'|'.join(_SHOWN)}|\w*password|passfile|servicefile|\w+_(?:secret|key))\s*=", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a database on a PostgreSQL server."""

    url: str = field(repr=False)  # with the password

    def __str__(self) -> str:
        return shown_name(self.url)


def shown_name(name: str | PathLike[str]) -> str:
    """Return the database's name for messages, with *** instead of passwords and other secrets."""
    text = os.fspath(name)
    if _SCHEME.match(text):
        text = _NO_PORT.sub(r"\1:***", _PASSWORD.sub(r"\1:***@", text))
    elif _MISTYPED.match(text):
        text = _AFTER_SCHEME.sub(r"\1***@", text)
    elif found := _KEYWORDS.search(text):
        return f"{found[1]}=***"
    else:
        return text
    return _PARAMETER.sub(_shown_parameter, text)


def _shown_parameter(found: re.Match[str]) -> str:
    return found[0] if unquote(found[1]) in _SHOWN else f"{found[1]}=***"


def is_address(name: str | PathLike[str]) -> bool:
    """Return whether the name is an address (even a mistyped one) or a connection string, and not a file's path."""
    text = os.fspath(name)
    return any(is_one(text) for is_one in (_SCHEME.match, _MISTYPED.match, _KEYWORDS.search))


def command_on(command: str, database: str | PathLike[str], program: str = "tsm2-tune") -> str:
    """Return the command line that executes `command` on the database. --db is omitted for the default database."""
    place = shown_name(database)
    return f"{program} {command}" + ("" if place == DEFAULT_DATABASE else f" --db {shlex.quote(place)}")


def import_command(text: str | PathLike[str]) -> str:
    """Return the command line that imports a file of trials into the default database."""
    return f"tsm2-tune import {shlex.quote(os.fspath(text))} --db {DEFAULT_DATABASE}"


def tune_first(name: str | PathLike[str]) -> str:
    """Return the end of a message about a database without results: the command that tunes, or another database."""
    from tsm2_tune.pretuned import meant  # imported here, since parsing a command line does not need it

    text = os.fspath(name)
    return meant(text) or (
        f"tune first ({command_on('--shapes 20480x16x20480', text)}), or name another with --db,"
        f" such as {PREFIX}h100, the pretuned kernels"
    )


def is_pretuned(name: str | PathLike[str]) -> bool:
    """Return whether the name denotes a file of trials in the package, such as pretuned:h100."""
    return os.fspath(name).lower().startswith(PREFIX)


def is_text(name: str | PathLike[str]) -> bool:
    """Return whether the name denotes a file of trials: pretuned:h100, or a file such as a100.jsonl."""
    return is_pretuned(name) or (os.fspath(name).endswith(TEXT_SUFFIX) and not is_address(name))


def place_of(name: str | PathLike[str]) -> Path | Address:
    """Return the file's path or the server's address that `--db` names.

    Raise StoreError if the name is empty, if it is the address of another kind of server, or if it names a text of
    trials, which is read-only.
    """
    text = os.fspath(name)
    if is_text(text):
        what, hint = "would be a file of trials, which export and pack write", ""
        if is_pretuned(text) or os.path.exists(text):
            what, hint = "is a file of trials, which can only be read", f"; {import_command(text)} imports it"
        raise StoreError(f"{text} {what}: name a database, such as {DEFAULT_DATABASE}{hint}")
    if not text:
        raise StoreError(f"the name of the database is empty: name a file with --db, or {EXAMPLE}")
    if not is_address(text):
        return Path(text)
    scheme = _SCHEME.match(text)
    if scheme is None or scheme[1] not in ("postgresql", "postgresql+psycopg"):
        raise StoreError(
            f"{shown_name(text)} is not a database that this tsm2-tune supports: name a file, or {EXAMPLE}"
        )
    return Address(text)
