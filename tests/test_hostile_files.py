"""Each member of a file of trials and of an exchange file with values that this program does not write there."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column

import tsm2_tune
from tests.exchanged import entry, tuned_database
from tests.hostile import HASH, ODD_MEMBERS, POOL, altered, changed, written_in_json, wrong_of
from tsm2_tune.tuner.results.exchange.entry import LATER, entry_of, record_of
from tsm2_tune.tuner.results.merge.serializer import LINES, TIME
from tsm2_tune.tuner.results.merge.text_parser import WRONG, parse_content
from tsm2_tune.tuner.results.storage import schema

RUN, TRIAL, TIMES, VENDOR = schema.run.c, schema.trial.c, schema.measurement.c, schema.vendor_measurement.c
EACH = 5  # a unit test gives a member one of so many wrong values
SPELT = ("", "x", "1x1:f32", "08x8x8:f32", "8x8x8:f8", "9" * 5000 + "x1x1:f32", *ODD_MEMBERS)


def refusal_by(read: Callable[[], object]) -> str:
    """Return why what is read is refused; "" if it is not."""
    try:
        read()
    except WRONG as error:
        return str(error) or type(error).__name__
    return ""


# Files of trials

OF_LINE: dict[str, tuple[Any, ...]] = {  # the columns of members by their kinds of lines; and of times
    "tools": (RUN,), "run": (RUN,), "basis": (schema.source.c,), "final": (TRIAL,), "trial": (TRIAL,),
    "vendor": (VENDOR, TIMES), "times": (TIMES,),
}  # fmt: skip
REFERENCES = {"key", "run", "tools", "basis", "source"}  # members that name another line, or a kernel
INFINITE = {("vendor", "verdict_worst_ratio"), ("trial", "stamp")}  # null: infinity, the run's date


def wrong_members(kind: str, name: str) -> Iterable[Any]:
    """Return values that no line of this kind has as the member."""
    if name == "problem":
        return SPELT
    if name == "times":
        return ([], 7, None, {}, "x", [[]], [7], 65 * [[None]])
    if kind == "final" and name == "key":
        return (*written_in_json(wrong_of(TIMES.final)), None)
    if name in REFERENCES:
        return ("00000000", "0000000", "0" * 64, *written_in_json(one for one in POOL if one != HASH[:16]))
    column = TIMES.summary_of if name == "samples" else next(one[name] for one in OF_LINE[kind] if name in one)
    wrong = [one for one in written_in_json(wrong_of(column)) if one is not None or (kind, name) not in INFINITE]
    is_never_null = name == "samples" or kind == "final" or (kind, name) == ("vendor", "final")
    return (*wrong, *([None] if is_never_null else []))


def with_member(text: str, kind: str, name: str, value: Any) -> tuple[str, int]:
    """Return the text with this member in the last line of a kind, or in its first time, and the line's number."""
    if kind != "times":
        return changed(text, kind, name, value)
    times = [json.loads(line)[-1] for line in text.splitlines() if line.startswith('["trial"')][-1]
    times[0][TIME.index(name)] = value
    return changed(text, "trial", "times", times)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("texts") / "tuned.db"
    tuned_database(path)
    return tsm2_tune.export(path, format="trials").text or ""


@pytest.mark.parametrize("each", [EACH, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", [*LINES, "times"])
def test_a_wrong_member_of_a_line_is_refused_by_its_number(kind: str, each: int, text: str, tmp_path: Path) -> None:
    file, passed = tmp_path / "trials.jsonl", list[object]()
    said = re.compile(re.escape(f"{file}, line ") + r"(\d+), is not as .{1,400}")
    for first, name in enumerate(LINES.get(kind, TIME)):
        for value in list(wrong_members(kind, name))[first % each :: each]:
            other, number = with_member(text, kind, name, value)
            file.write_text(other)
            refusal = refusal_by(lambda: parse_content(file, file.read_bytes()))
            found = said.fullmatch(refusal)
            if found is None or int(found[1]) < number:  # of a key, the first line that names it is told
                passed.append((name, value, refusal))
    assert passed == []


def test_a_time_of_another_run_than_its_final_is_refused(text: str, tmp_path: Path) -> None:
    file, refused = tmp_path / "trials.jsonl", list[bool]()
    for run in [json.loads(line)[1] for line in text.splitlines() if line.startswith('["run"')]:
        file.write_text(changed(text, "vendor", "run", run)[0])
        refused.append("another run than its final" in refusal_by(lambda: parse_content(file, file.read_bytes())))
    assert sorted(refused) == [False, True]


# Exchange files

Way = tuple[str | int, ...]  # to an object of a record
LISTS = ("others", "rounds", "timed", "vendor")  # which may be empty
MISSING = object()
OWN: dict[str, tuple[Any, ...]] = {  # wrong values of members that no column has
    "first": tuple(one for one in ODD_MEMBERS if one is not None), "run": (99, *ODD_MEMBERS), "problem": SPELT,
    "trial": (99, -10, *(one for one in ODD_MEMBERS if one != -1)), "version": (0, 3, *ODD_MEMBERS),
    "samples_us": ((), 7, None, [], [500.0, -1.0, 500.0], [500.0, "x", 500.0], 4097 * [500.0], [[500.0]], "123"),
}  # fmt: skip


def at(record: Any, way: Way) -> Any:
    for one in way:
        record = record[one]
    return record


def places(record: dict[str, Any]) -> Iterator[tuple[Way, str, Column[Any] | None]]:
    """Yield the members of an exchange file's record, with the column whose value each has."""
    timed = next(number for number, one in enumerate(record["trials"]) if one["first"])
    final = {"final": TIMES.final, "stamp": TRIAL.stamp}
    for way, columns in (
        (("runs", 0), RUN), (("trials", timed), TRIAL), (("trials", timed, "first"), TIMES), (("rounds", 0), final),
        (("rounds", 0, "timed", 0), TIMES), (("rounds", 0, "vendor", 0), VENDOR), ((), TRIAL),
    ):  # fmt: skip
        yield from ((way, name, columns.get(name)) for name in at(record, way))


def passing(change: Callable[[Any, str, Column[Any] | None], Iterable[Any]]) -> list[tuple[Any, str, Any]]:
    """Return the changes that are not refused: an object's member set to a value, or removed for MISSING.

    `change` yields the values for a good object's member and its column.
    """
    made, passed = entry("tsm2"), []
    timed = {key: made.part.trials[key] for key in made.part.rounds[0].timed}  # few, as each is read again and again
    good = record_of(replace(made, part=replace(made.part, trials=timed)))
    for way, name, column in places(good):
        for value in change(at(good, way), name, column):
            record = copy.deepcopy(good)
            at(record, way).update({name: value})
            if value is MISSING:
                del at(record, way)[name]
            refusal = refusal_by(partial(entry_of, json.loads(json.dumps(record))))
            assert len(refusal) < 1000 or (way, name) == ((), "cache")  # which is repeated, and cut off by commands
            if not refusal:
                passed.append((way, name, value))
    return passed


@pytest.mark.slow
def test_a_wrong_member_of_a_record_is_refused() -> None:
    def wrong(_: Any, name: str, column: Column[Any] | None) -> Iterable[Any]:
        if column is not None:
            return written_in_json((*wrong_of(column), [], {}))
        return OWN.get(name, [one for one in ODD_MEMBERS if one != [] or name not in LISTS])

    assert passing(wrong) == []


def test_a_member_that_is_missing_is_refused_unless_older_versions_lack_it() -> None:
    assert {name for _, name, _ in passing(lambda *_: [MISSING])} <= LATER


def test_times_of_a_record_that_contradict_its_samples_are_refused() -> None:
    def contradicting(good: Any, name: str, column: Column[Any] | None) -> Iterable[Any]:
        is_of_times = name in ("median_us", "low_us", "high_us", "summary_of", "config")
        return altered(column, good[name]) if column is not None and is_of_times else ()

    assert passing(contradicting) == []
