"""Hostile values of each column of the schema: what a foreign file may hold instead of a stored value.

The ends of each domain are stated here once more, so that tests find a domain of validation.py that was changed by
mistake. A column that OF_NAME lacks has the domain of its type.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import Result
from sqlalchemy import Column, Table

from tests.command import run
from tsm2_tune.generator.problem import DTYPES
from tsm2_tune.tuner.results.storage import schema

MOST_INT, MOST_ID = 2**31 - 1, 2**63 - 1
NO_LINES = ("a\nb", "\x1b[2J", "\x00", "\u202e", "\ud800")
QUOTED = ('*/ "; evil();', "{{ 7 * 7 }}</script>", "=1+1", "'; DROP TABLE trial; --", "\\", "é")  # lines of text
HASH = "0123456789abcdef" * 4


@dataclass(frozen=True, slots=True)
class Values:
    """Values of a domain, its ends among them, and values of the same type that lie just outside."""

    right: tuple[Any, ...]
    wrong: tuple[Any, ...]


def integers(least: int, most: int) -> Values:
    return Values((least, most), (least - 1, most + 1, -(10**400), 10**400))


def reals(least: float, most: float) -> Values:
    ends = (math.nextafter(least, -math.inf), math.nextafter(most, math.inf), math.inf)
    return Values((least, most), (-1.0, math.nan, -math.inf, *(one for one in ends if not least <= one <= most)))


def texts(*right: str, wrong: tuple[str, ...] = ()) -> Values:
    return Values(right, (*wrong, *NO_LINES))


def names(most: int, wrong: str, start: str = "a") -> Values:
    """Words of at most so many characters."""
    longest = start + "z" * (most - len(start))
    return texts(start, longest, wrong=("", f"{longest}z", f"{start}é", f"{start}\n", wrong))


def hexadecimal(digits: int, *more: str, wrong: tuple[str, ...] = ()) -> Values:
    one = HASH[:digits]
    return texts(one, *more, wrong=(*wrong, "", one[1:], f"{one}0", f"{one}\n", one.upper(), f"g{one[1:]}"))


DATES = ("yesterday", "2026-01-02", "2026-13-01T00:00:00Z", "2026-01-02T03:04:05+01:00", "2026-01-02T03:04:05Z\n")
UP_TO = {most: Values(("", "x" * most), ("x" * (most + 1), "\ud800")) for most in (4096, 2**14, 2**19)}
NAME, DIGEST, FLAG, RATE = names(64, "A"), hexadecimal(64), integers(0, 1), reals(1e-6, 1e12)
DATE = texts("2026-01-02T03:04:05+00:00", "2026-12-31T23:59:59.123456Z", wrong=("", *DATES))
OF_TYPE: dict[type, Values] = {
    str: texts("x" * 1000, "", *QUOTED, wrong=("x" * 1001,)),
    int: integers(0, MOST_INT),
    float: reals(0.0, 1e15),
}
OF_NAME: dict[str, Values] = {
    **dict.fromkeys(("id", "run_id", "problem_id", "trial_id", "measurement_id"), integers(0, MOST_ID)),
    **dict.fromkeys(("flops", "least_bytes", "seed"), integers(0, MOST_ID)),
    **dict.fromkeys(("family", "kernel"), NAME),
    **dict.fromkeys(("digest", "source_digest", "tools"), DIGEST),
    **dict.fromkeys(("started_at", "ended_at", "tuned_at", "last_at"), DATE),
    **dict.fromkeys(("detail", "verdict_detail", "full_verdict"), UP_TO[2**14]),
    **dict.fromkeys(("tunables", "parameters", "gflops"), UP_TO[4096]),
    **dict.fromkeys(("median_us", "newest_us"), reals(1e-6, 1e15)),
    **dict.fromkeys(("read_gbytes_per_s", "copy_gbytes_per_s"), RATE),
    **dict.fromkeys(("verdict_correct", "is_new", "stale", "verified_in_full", "persistent"), FLAG),
    **dict.fromkeys(("is_between", "superseded"), FLAG),
    "batched": integers(0, 2),
    **dict.fromkeys(("stamp", "final_stamp"), integers(0, 2**62)),
    "verified_code": texts(f"{HASH} {HASH}", wrong=("", HASH, f"{HASH}  {HASH}", f"{HASH} {HASH[1:]}")),
    "cache": texts("clean", "dirty", "warm", wrong=("", "hot", "Clean")),
    "outcome": texts("ok", "behind", "wrong-result", "timed-out", "crashed", wrong=("", "fine", "OK")),
    "dtype": texts(*DTYPES, wrong=("", "f8", "F32")),
    "library": texts("cuBLAS", "cuBLASLt", wrong=("", "MKL", "cublas")),
    "guideline_broken": names(64, "a b"),
    "search_ended": names(64, "a_b"),
    "strategy": names(64, "<b>"),
    "op": texts("nn", "a" * 20, "t_0", wrong=("", "a" * 21, "a b", "A")),
    "text": UP_TO[2**19],
    "key": hexadecimal(16),
    "final": hexadecimal(16),
    "paragraphs": hexadecimal(16, " ".join(256 * [HASH[:16]]), wrong=(" ".join(257 * [HASH[:16]]),)),
    **dict.fromkeys(("config", "suspect"), texts(
        "tsm2", "tsm2:version=v3,threads=128", "tsm2-v3-128",
        wrong=("", "tsm2;", "Tsm2", "tsm2:threads=", "tsm2:threads=1,", "tsm2:threads=-1", "../tsm2", "tsm2-"),
    )),
    "routine": texts(
        "cublasSgemm", "cublasLtMatmul #3", "cublas" + 40 * "x" + " #999",
        wrong=("", "cublas", "mkl", "cublasSgemm #0", "cublasSgemm #1000", "cublas" + 41 * "x"),
    ),
    "round": integers(-MOST_INT, MOST_INT),
    "summary_of": integers(1, 4096),
    "verdict_worst_ratio": reals(0.0, math.inf),
    "threads": integers(1, 1024),
    "rows_per_block": integers(1, MOST_INT),
    "smem_bytes": integers(0, 232448),
    "splits": integers(1, 65535),
    "flat_splits": integers(1, MOST_INT),
    "sms": integers(1, 65536),
}  # fmt: skip
NULLABLE = frozenset(
    f"{table}.{name}"
    for table, names in {
        "lease": "config suspect",
        "measurement": "final final_stamp slowed sm_clock_mhz summary_of",
        "quarantine": "run_limit_seconds",
        "run": "sms",
        "trial": "blocks_per_sm compile_limit_seconds first_basis full_verdict guideline_broken local_bytes registers"
        " rows_per_block run_limit_seconds search_ended smem_bytes space_configurations spill_bytes splits strategy"
        " verdict_correct verdict_detail verdict_worst_ratio verified_code",
        "vendor_measurement": "final final_stamp slowed sm_clock_mhz summary_of",
        "best": "registers smem_bytes strategy",
    }.items()
    for name in names.split()
)
OTHER_TYPES: dict[type, tuple[Any, ...]] = {
    str: (b"", b"\xff\xfe", 7, 1.5, ["a"], {}),
    int: ("", "7", "x", 1.5, math.nan, b"", [1], {}),
    float: ("", "7", "x", b"", b"\xff", [1.0], {}),
}
# Texts of JSON objects that a column may hold, but no object of tunables, or of rates.
NO_OBJECTS = ("", "{", "[]", "7", "null", '"x"', "[" * 4000, json.dumps(dict.fromkeys(map(str, range(65)), 1)))
NO_NUMBERS = ("NaN", "1e999", "-1", "true", "null", "[1]", "{}", "9" * 400)
OF_JSON = {
    "tunables": (
        *NO_OBJECTS, '{"\\ud800": 1}', '{"A": 1}', '{"a": "B"}', '{"a": 1.5}', f'{{"a": {2**31}}}',
        *(f'{{"threads": {one}}}' for one in NO_NUMBERS),
    ),
    "gflops": (*NO_OBJECTS, '{"\\ud800": 1}', '{"f32": "1"}', '{"f32": 0}', '{"f32": 1.1e12}',
               *(f'{{"f32": {one}}}' for one in NO_NUMBERS)),
}  # fmt: skip


def values_of(column: Column[Any]) -> Values:
    return OF_NAME.get(column.name, OF_TYPE[column.type.python_type])


def has_null(column: Column[Any]) -> bool:
    """Whether the column may be NULL: one of a table is in NULLABLE, and all of joined rows may be."""
    return column.table is None or str(column) in NULLABLE


def wrong_of(column: Column[Any]) -> tuple[Any, ...]:
    """Return values that no row of this program has in the column: out of its domain, or of another type."""
    kind = column.type.python_type
    null = () if has_null(column) else (None,)
    return (*values_of(column).wrong, *OF_JSON.get(column.name, ()), *OTHER_TYPES[kind], *null)


# Values that are of no member of an object but a list, an object or a truth.
ODD_MEMBERS: tuple[Any, ...] = (None, -1, 10**400, 0.5, math.nan, math.inf, "", "x", "\ud800", [], {}, [[]])


def written_in_json(values: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(one for one in values if not isinstance(one, bytes))


def altered(column: Column[Any], stored: Any) -> tuple[Any, ...]:
    """Return other values of the column's domain: its ends, and for a number those near it."""
    found = values_of(column).right
    if isinstance(stored, int | float) and found:
        near = (stored + 1, stored - 1, 2 * stored, stored / 2 if isinstance(stored, float) else 0)
        found = (*found, *(one for one in near if found[0] <= one <= found[-1]))
    null = (None,) if has_null(column) else ()
    return tuple(one for one in (*found, *null) if one != stored)


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


def run_on(path: Path, *command: str) -> str:
    """Ask a command of a database. Return why it refuses, or "". Raise AssertionError where it does neither well.

    What is refused is refused in one clear sentence with exit status 2, what is read is printed without controls, and
    the file is as it was. An import reads the file into a new database, and leaves none where it refuses.
    """
    before, new = path.read_bytes(), path.with_name("new.db")
    asked = (*command, str(path), "--db", str(new)) if command[0] == "import" else (*command, "--db", str(path))
    refusal = refusal_of(asked, run(*asked))
    assert path.read_bytes() == before, f"{command} changed the file"
    assert not (refusal and new.exists()), f"{command} made a database: {refusal}"
    new.unlink(missing_ok=True)
    return refusal


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
    assert result.exit_code == 0, f"{command}: exit status {result.exit_code}: {result.output[:500]}"
    return ""


def _no_number(text: str) -> None:
    raise AssertionError(f"{text} in JSON")


# Tables with columns that a program reads and trusts no further than their domains.
TABLES: tuple[Table, ...] = tuple(one for one in schema.metadata.sorted_tables if one is not schema.lease)
COLUMNS = {str(column): column for table in TABLES for column in table.columns}
