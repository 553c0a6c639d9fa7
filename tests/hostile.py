"""Hostile values of each column of the schema, which a foreign file may hold, and what a command may do about them.

POOL has values of all kinds, and those at both sides of each domain's ends. A column's own domain says which of them
are wrong in it; test_domains.py states once more what each domain contains.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from click.testing import Result
from sqlalchemy import Column, Table

from tests.command import run
from tsm2_tune.tuner.results import domains
from tsm2_tune.tuner.results.merge.serializer import LINES
from tsm2_tune.tuner.results.storage import schema

MOST_INT, MOST_ID = 2**31 - 1, 2**63 - 1
HASH = "0123456789abcdef" * 4
DATE = "2026-01-02T03:04:05+00:00"
NO_LINES = ("a\nb", "\x1b[2J", "\x00", "\u202e", "\ud800")  # texts that no terminal should be sent
QUOTED = ('*/ "; evil();', "{{ 7 * 7 }}</script>", "=1+1", "'; DROP TABLE trial; --", "\\", "é")
ENDS = (0, 1, 2, 64, 1024, 4096, 65535, 65536, 232448, MOST_INT, 2**62, MOST_ID)
NUMBERS = ("NaN", "1e999", "-1", "true", "null", "[1]", "{}", "9" * 400, '"B"', "1.5", "1e-300")
POOL: tuple[Any, ...] = (
    None,
    *(end + step for end in (*ENDS, -MOST_INT) for step in (-1, 0, 1)), 10**400, -(10**400),
    *(0.5, -0.5, 1e-7, 1e-6, 1e12, 1.1e12, 1e15, 1.1e15, math.nan, math.inf, -math.inf),
    *NO_LINES, *QUOTED, "", "x", "A", "a b", "a_b", "a-b", "7", "aé",
    *("x" * (most + more) for most in (20, 64, 1000, 4096, 2**14, 2**19) for more in (0, 1)),
    *(HASH, HASH[1:], f"{HASH}\n", HASH.upper(), HASH[:16], HASH[:15], f"{HASH} {HASH}", f"{HASH}  {HASH}"),
    " ".join(257 * [HASH[:16]]),
    *(DATE, "yesterday", "2026-01-02", "2026-13-01T00:00:00Z", DATE.replace("+00", "+01"), f"{DATE[:19]}Z\n"),
    *("ok", "OK", "timed-out", "clean", "hot", "f32", "f8", "cuBLAS", "MKL", "nn", "t" * 21),
    *("tsm2:version=v3,threads=128", "tsm2-v3-128", "tsm2;", "tsm2:threads=", "tsm2:threads=-1", "../tsm2"),
    *("cublasSgemm", "cublasLtMatmul #3", "cublas", "cublasSgemm #0", "cublasSgemm #1000", "mkl"),
    *('{"f32":1}', "{", "[]", "null", "[" * 4000, json.dumps(dict.fromkeys(map(str, range(65)), 1))),
    *(f'{{"{name}": {one}}}' for name in ("f32", "A", "\\ud800") for one in NUMBERS),
    *(b"", b"\xff\xfe", [], ["a"], {}, [[]]),
)  # fmt: skip


@cache
def is_right(column: Column[Any], at: int) -> bool:
    """Return whether the value of POOL at this place is one that this program may store in the column."""
    with suppress(ArithmeticError, LookupError, RecursionError, TypeError, ValueError):
        domains.checked({column.name: POOL[at]}, [column])
        if column.name in ("tunables", "parameters"):
            domains.tunables(POOL[at])
        if column.name == "gflops":
            domains.rates(POOL[at])
        return True
    return False


def right_of(column: Column[Any]) -> list[Any]:
    return [one for at, one in enumerate(POOL) if is_right(column, at)]


def wrong_of(column: Column[Any]) -> list[Any]:
    """Return values that no row of this program has in the column: out of its domain, or of another type."""
    return [one for at, one in enumerate(POOL) if not is_right(column, at)]


def written_in_json(values: Iterable[Any]) -> list[Any]:
    return [one for one in values if not isinstance(one, bytes)]


# Values that are of no member of an object but a list, an object or a truth.
ODD_MEMBERS: tuple[Any, ...] = (None, -1, 10**400, 0.5, math.nan, math.inf, "", "x", "\ud800", [], {}, [[]])


def in_full(text: str) -> str:
    """Return the text with a NULL for each later column that it omits, since that is NULL in all trials."""
    first, *rest = map(json.loads, text.splitlines())
    if first["lines"] == json.loads(json.dumps(LINES)):
        return text
    names, first["lines"] = first["lines"]["trial"], LINES
    for line in rest:
        if line[0] == "trial":
            values = dict(zip(names, line[1:], strict=True))
            line[1:] = [values.get(name) for name in LINES["trial"]]
    return "".join(f"{json.dumps(line)}\n" for line in (first, *rest))


def changed(text: str, kind: str, name: str, value: Any, which: int = -1) -> tuple[str, int]:
    """Return the text with this member in a line of the kind (the last, if not said), and the line's number."""
    every = in_full(text).splitlines()
    at = [at for at, line in enumerate(every) if line.startswith(f'["{kind}"')][which]
    line = json.loads(every[at])
    line[1 + LINES[kind].index(name)] = value
    every[at] = json.dumps(line)
    return "\n".join(every), at + 1


def altered(column: Column[Any], stored: Any) -> list[Any]:
    """Return other values of the column's domain, of a number those near it last, and NULL if it may be."""
    found = [one for one in right_of(column) if one is not None]
    if isinstance(stored, int | float):
        near = (stored + 1, stored - 1, 2 * stored, stored / 2 if isinstance(stored, float) else 0)
        found += [one for one in near if domains.domain_of(column).contains(one)]
    return [one for one in (*found, *([None] if column.nullable else [])) if one != stored]


@dataclass(frozen=True, slots=True)
class Edit:
    """A value for one row of a column's table, in the order of its keys: 0 is the first row, -1 the last."""

    column: Column[Any]
    value: Any
    row: int = 0

    def __str__(self) -> str:
        return f"{self.column} = {str(self.value)[:80]!r} in row {self.row}"

    def put(self, path: Path) -> bool:
        """Put the value into the file. Return whether SQLite stores it, and as it is."""
        table, column = self.column.table, self.column.name
        keys = [one.name for one in table.primary_key]
        value, new = self.value, "?"
        if isinstance(value, str):  # also one that is no Unicode
            value, new = value.encode(errors="surrogatepass"), "CAST(? AS TEXT)"
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA synchronous = OFF")
            rows = connection.execute(f"SELECT {', '.join(keys)} FROM {table} ORDER BY {', '.join(keys)}").fetchall()
            where = " AND ".join(f"{one} = ?" for one in keys)
            change = f"UPDATE {table} SET {column} = {new} WHERE {where} RETURNING {column}"
            connection.text_factory = bytes
            with suppress(sqlite3.Error, OverflowError), connection:
                ((stored,),) = connection.execute(change, (value, *rows[self.row]))
                return type(stored) is type(value) and bool(stored == value)
        return False


def run_on(path: Path, *command: str) -> tuple[str, str]:
    """Ask a command of a database. Return why it refuses, or "", and its output.

    What is refused is refused in one clear sentence with exit status 2, what is read is printed without controls, and
    the file is as it was. An import reads the file into a new database, and leaves none where it refuses.
    """
    before, new = path.read_bytes(), path.with_name("new.db")
    asked = (*command, str(path), "--db", str(new)) if command[0] == "import" else (*command, "--db", str(path))
    result = run(*asked)
    refusal = refusal_of(asked, result)
    assert path.read_bytes() == before, f"{command} changed the file"
    assert not (refusal and new.exists()), f"{command} made a database: {refusal}"
    new.unlink(missing_ok=True)
    return refusal, result.output


def refusal_of(command: tuple[str, ...], result: Result) -> str:
    """Return why the command refused what it was asked; "" if it did not. Raise AssertionError for anything else."""
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise AssertionError(f"{command}: {result.exception!r}") from result.exception
    if result.exit_code == 2:
        sentence = result.stderr.removesuffix("\n")
        assert sentence.startswith("Error: "), f"{command}: {result.output[:2000]!r}"
        assert result.stdout == "", f"{command} printed before it refused: {result.stdout[:2000]!r}"
        assert sentence.isprintable(), f"{command}: no sentence, but {sentence[:2000]!r}"
        assert len(sentence) < 1000, f"{command}: no sentence, but {sentence!r}"
        return sentence
    if "--json" in command or "json" in command:
        json.loads(result.stdout, parse_constant=_no_number)
    elif "csv" not in command and "report" not in command:
        assert not any(c < " " and c not in "\n\t" for c in result.output), f"{command}: {result.output[:500]!r}"
    if result.exit_code == 1 and "check" in command:
        return result.stdout
    is_without_winner = result.exit_code == 1 and command[0] == "best"
    assert result.exit_code == 0 or is_without_winner, f"{command}: {result.exit_code}: {result.output[:500]}"
    return ""


def _no_number(text: str) -> None:
    raise AssertionError(f"{text} in JSON")


# Tables with columns that a program reads and trusts no further than their domains.
TABLES: tuple[Table, ...] = tuple(one for one in schema.metadata.sorted_tables if one is not schema.lease)
COLUMNS = {str(column): column for table in TABLES for column in table.columns}
