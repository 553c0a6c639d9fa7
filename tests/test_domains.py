"""The domain of each column: its right values, its ends among them, and the values just outside.

They are stated here once more, so that a test finds a domain that was changed by mistake. A column that OF_NAME lacks
has the domain of its type.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import Column

from tests.hostile import COLUMNS, HASH, MOST_ID, MOST_INT, NO_LINES, QUOTED, right_of, wrong_of
from tsm2_tune.generator.dtypes import DTYPES
from tsm2_tune.tuner.results import domains, trial_summaries
from tsm2_tune.tuner.results.best_view import best
from tsm2_tune.tuner.results.domains import checked, domain_of
from tsm2_tune.tuner.results.storage import schema
from tsm2_tune.tuner.results.trial import MOST_TEXT, in_a_line


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


CHECKED: tuple[Column[Any], ...] = (
    *(column for table in schema.metadata.tables.values() for column in table.columns),
    *best.columns,
    *trial_summaries.NEWEST,
)


@pytest.mark.parametrize("column", CHECKED, ids=str)
def test_a_column_has_the_values_of_its_domain_and_no_others(column: Column[Any]) -> None:
    for value in (*values_of(column).right, *([None] if has_null(column) else [])):
        assert checked({column.name: value}, [column]) == {column.name: value}
    texts = OF_JSON.get(column.name, ())  # which are texts of the column, but of no right object
    null = () if has_null(column) else (None,)
    for value in (*values_of(column).wrong, *OTHER_TYPES[column.type.python_type], *null):
        with pytest.raises(
            (TypeError, ValueError), match=rf"^{column.name} = .* (of this column|of type)"
        ) as refused:
            checked({column.name: value}, [column])
        assert len(str(refused.value)) < 250
    for value in texts:
        with pytest.raises((ValueError, RecursionError)):
            (domains.rates if column.name == "gflops" else domains.tunables)(value)


def test_every_domain_is_of_a_column_and_stated_twice() -> None:
    of_type = (domains.LINE, domains.COUNT, domains.QUANTITY)
    assert OF_NAME.keys() == {column.name for column in CHECKED if domain_of(column) not in of_type}


@pytest.mark.parametrize("column", COLUMNS.values(), ids=str)
def test_hostile_values_are_at_both_sides_of_each_domain(column: Column[Any]) -> None:
    assert any(one is not None for one in right_of(column))
    assert any(type(one) is column.type.python_type for one in wrong_of(column))


def test_tunables_and_rates_are_read_up_to_their_ends() -> None:
    values = {"version": "v3", "threads": MOST_INT, "a" * 20: 0} | dict.fromkeys(map(str, range(61)), 1)
    assert domains.tunables(json.dumps(values)) == values
    assert domains.rates('{"f32": 1e-6, "f64": 1e12, "bf16": 7}') == {"f32": 1e-6, "f64": 1e12, "bf16": 7.0}


def test_names_are_stored_as_a_line() -> None:
    assert in_a_line("a  b\tc\n\x1b[31md\u2028") == "a  b c  [31md "
    assert len(in_a_line("x" * 10_000)) == MOST_TEXT
