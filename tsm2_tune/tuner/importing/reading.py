"""A text of trials -> the parts of a database that it tells of. It is from anywhere: each value is checked."""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Any

from tsm2_tune.errors import InputError, shown
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.families import config_spelt
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.generator.roofline import Ceilings
from tsm2_tune.generator.source import KernelSource
from tsm2_tune.tuner import rows, schema, stored
from tsm2_tune.tuner.basis import basis
from tsm2_tune.tuner.domains import Row, checked
from tsm2_tune.tuner.importing.parts import IDS
from tsm2_tune.tuner.importing.text import (
    DIGITS,
    LINES,
    LINES_OF_2,
    NAME,
    OF_TRIAL,
    OF_VENDOR,
    SOURCE_DIGITS,
    TIME,
    TOOLS,
    VERSION,
)
from tsm2_tune.tuner.importing.union import RUN, STARTED_AT, Part, Round, RunKey, Timed, TrialKey, Tried
from tsm2_tune.tuner.trial import Cache, LoadedResources, Measurement, Outcome, Trial, Verdict, in_a_line

MOST_BYTES = 64_000_000  # of a file; a text of 5,000 trials has 1.2 MB
FIRST = f'{{"{NAME}":'.encode()  # what such a text begins with
DATABASE = b"SQLite format 3"  # and a database
MOST_SPACE = 64  # bytes before the first brace of another JSON object
UNTOLD = "right, by a text of trials"
MOST_TEXT = 100  # characters of a configuration or problem in a sentence
_KEY, _SOURCE = re.compile(rf"[0-9a-f]{{{DIGITS}}}"), re.compile(rf"[0-9a-f]{{{SOURCE_DIGITS}}}")
WRONG = (InputError, ArithmeticError, LookupError, RecursionError, TypeError, ValueError)


@dataclass(slots=True)
class Told:
    """What a text tells."""

    parts: dict[tuple[str, Problem], Part] = field(default_factory=dict)  # by device and problem
    sources: dict[str, Row] = field(default_factory=dict)  # rows of `source`, by digest
    left_out: dict[str, str] = field(default_factory=dict)  # by configuration why it cannot be used


class Kind(Enum):
    """What an import takes, by how a file begins."""

    DATABASE = auto()
    TEXT = auto()  # of trials
    EXCHANGE = auto()  # a JSON object, as other autotuners write and read


def kind_of(path: Path) -> Kind:
    """What the file begins as; an empty one is a database. InputError where it is none of these or cannot be read."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # before opening it: a pipe would wait, a device never end
            raise InputError(f"cannot import {path}: it is no regular file; name a database or a text of trials")
        with path.open("rb") as file:
            begin = file.read(MOST_SPACE)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no file can be called so"
        raise InputError(f"cannot import {path}: {reason}") from None
    if not begin or begin.startswith(DATABASE):
        return Kind.DATABASE
    if begin.startswith(FIRST):
        return Kind.TEXT
    if begin.lstrip().startswith(b"{"):
        return Kind.EXCHANGE
    raise InputError(
        f"cannot import {path}: it is neither a database nor a text of trials, nor a T4 file or a cache of Kernel"
        " Tuner; name another file"
    )


def told_in(path: Path) -> Told:
    """What the text tells. InputError, with the line, where that is not as this program writes it."""
    content = content_of(path)
    reader = _Reader()
    number = 0
    try:
        for number, line in enumerate(content.decode().split("\n"), 1):
            if line:
                reader.read(json.loads(line, parse_constant=refuse_constant), is_head=number == 1)
        return reader.told()
    except WRONG as error:
        raise _unlike(path, number, error) from None


def content_of(path: Path) -> bytes:
    """All that is in the file. InputError where that is more than such files have."""
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise InputError(f"{path} has more than {MOST_BYTES} bytes: name a smaller file of trials")
    return content


def refuse_others(path: Path) -> None:
    """InputError where the text is of another version than this program reads, by its first line."""
    try:
        with path.open("rb") as file:
            line = file.readline(MOST_BYTES)
        _Reader().read(json.loads(line, parse_constant=refuse_constant), is_head=True)
    except WRONG as error:
        raise _unlike(path, 1, error) from None


def _unlike(path: Path, number: int, error: Exception) -> InputError:
    """That a line of the text is not as this program writes it."""
    said = "it is no JSON" if isinstance(error, json.JSONDecodeError) else str(error) or type(error).__name__
    return InputError(
        f"{path}, line {number}, is not as this tsm2-tune writes it ({in_a_line(said)[:300]}):"
        " write it anew by tsm2-tune export --format trials"
    )


class _Reader:
    """Reads lines; those that others name come before them."""

    def __init__(self) -> None:
        self._lines: dict[str, tuple[str, ...]] = LINES
        self._tools: dict[str, dict[str, Any]] = {}
        self._runs: dict[str, tuple[RunKey, Ceilings]] = {}
        self._trials = defaultdict[tuple[str, Problem], dict[TrialKey, Tried]](dict)
        self._rounds = defaultdict[tuple[str, Problem], dict[tuple[int, RunKey], Round]](dict)
        self._told = Told()
        self._kinds = {
            "tools": self._read_tools,
            "run": self._read_run,
            "trial": self._read_trial,
            "vendor": self._read_vendor,
        }

    def read(self, line: Any, *, is_head: bool) -> None:
        """One line."""
        if is_head:
            version = line.get(NAME) if isinstance(line, dict) else None
            if version not in (2, VERSION):
                raise ValueError(f"expected {NAME} {VERSION}")
            self._lines = LINES if version == VERSION else LINES_OF_2
            if line.get("lines") != json.loads(json.dumps(self._lines)) or line.get("times") != list(TIME):
                raise ValueError("its lines have other members")
            return
        if not isinstance(line, list) or not line or not isinstance(line[0], str) or line[0] not in LINES:
            raise ValueError(f"{shown(line)} is no line of ours")
        names = self._lines[line[0]]
        if len(line) != 1 + len(names):
            raise ValueError(f"{line[0]} has {len(line) - 1} members, and not {len(names)}")
        self._kinds[line[0]](dict(zip(names, line[1:], strict=True)))

    def told(self) -> Told:
        """All that was read."""
        for place, trials in self._trials.items():
            rounds = self._rounds[place]
            self._told.parts[place] = Part(trials, [rounds[key] for key in sorted(rounds, key=lambda key: key[0])])
        return self._told

    def _read_tools(self, line: dict[str, Any]) -> None:
        _once(self._tools, _key(line["key"]), {name: line[name] for name in TOOLS})

    def _read_run(self, line: dict[str, Any]) -> None:
        values = {**self._tools[_key(line["tools"])], "started_at": line["started_at"]}
        run = stored.tuning_run({"id": 0, **values})
        _once(self._runs, _key(line["key"]), (tuple(values[name] for name in RUN), run.ceilings))

    def _read_trial(self, line: dict[str, Any]) -> None:
        columns = schema.trial.c
        values = checked({"strategy": None, **line}, [columns.config, *(columns[name] for name in OF_TRIAL)])
        problem = problem_spelt(line["problem"])
        times = [self._time(problem, time) for time in _list(line["times"])]
        device = device_of(times[0][1].run)
        config, source = self._kernel(problem, values["config"], line["source"], device)
        if config is None or source is None:
            return
        (number, own), *finals = times
        if number != 0 or any(number < 1 or device_of(one.run) != device for number, one in finals):
            raise ValueError("its first time is none of its own, or another is not of a final on its device")
        self._told.sources[source.digest] = rows.source_values(source)
        toolkit, flags = (str(own.run[RUN.index(name)]) for name in ("toolkit", "flags"))
        own_basis = basis(toolkit, flags, Cache(own.values["cache"]))
        trial = _trial(problem, config, own_basis, source, values, own)
        stored_values = {"config": config.text, "basis": own_basis, **rows.trial_values(trial)}
        stored_values["ended_at"] = own.run[STARTED_AT]  # a text tells no more of it
        place = (device, problem)
        _once(self._trials[place], (config.text, own_basis), Tried(own.run, stored_values, own))
        for number, timed in finals:
            _once(dict_of(self._round(place, number, timed).timed), (config.text, own_basis), timed)

    def _read_vendor(self, line: dict[str, Any]) -> None:
        ratio = math.inf if line["verdict_worst_ratio"] is None else line["verdict_worst_ratio"]
        detail = UNTOLD if line["verdict_correct"] == 1 else "wrong, by a text of trials"
        columns = (schema.vendor_measurement.c[name] for name in OF_VENDOR)
        values = checked(line | {"verdict_worst_ratio": ratio}, columns) | {"verdict_detail": detail}
        stored.verdict_of(values)
        problem = problem_spelt(line["problem"])
        number, timed = self._time(problem, [line[name] for name in TIME])
        if number < 1:
            raise ValueError(f"{number} is no round of a final")
        kept = {name: value for name, value in timed.values.items() if name != "floor_us"}
        vendor = Timed(timed.run, kept | values, ())
        at = self._round((device_of(timed.run), problem), number, vendor)
        _once(dict_of(at.vendor), values["library"], vendor)

    def _round(self, place: tuple[str, Problem], number: int, timed: Timed) -> Round:
        return self._rounds[place].setdefault((number, timed.run), Round(timed.run, number, {}, {}))

    def _time(self, problem: Problem, members: Any) -> tuple[int, Timed]:
        """The number of the round, and the time, as a row of `measurement` has it."""
        line = dict(zip(TIME, _list(members), strict=True))
        table = schema.measurement.c
        names = ("round", "cache", "median_us", "low_us", "high_us", "sm_clock_mhz")
        v = checked(line | {"summary_of": line["samples"]}, [*(table[name] for name in names), table.summary_of])
        if v["summary_of"] is None:
            raise ValueError("a time is of no samples")
        stored.check_interval(v["low_us"], v["median_us"], v["high_us"])
        run, ceilings = self._runs[_key(line["run"])]
        measured = Measurement(
            (), v["median_us"], v["low_us"], v["high_us"], v["sm_clock_mhz"], Cache(v["cache"]), v["summary_of"]
        )
        floor_us = ceilings.floor_us(problem)
        row = rows.measurement_values(measured, 0, run_id=0, round_=0, floor_us=floor_us)
        return v["round"], Timed(run, {name: value for name, value in row.items() if name not in IDS}, ())

    def _kernel(
        self, problem: Problem, text: str, source: Any, device: str
    ) -> tuple[KernelConfig, KernelSource] | tuple[None, None]:
        """What the text of a configuration spells here; None, which is noted, where that is another kernel."""
        if not isinstance(source, str) or not _SOURCE.fullmatch(source):
            raise ValueError(f"{shown(source)} is no beginning of a digest")
        config = config_spelt(text)
        if config is None or not stored.is_of_this_version(config, problem):
            why = f"{text}, measured on {device}, is no configuration of this tsm2-tune"
        else:
            made = render(problem, config)
            if made.digest.startswith(source):
                return config, made
            why = f"{text}, measured on {device}, is made otherwise by this tsm2-tune: tune {problem.text} again"
        self._told.left_out.setdefault(text, f"left out: {why}")
        return None, None


def dict_of(found: Any) -> dict[Any, Any]:
    """The dictionary that a record of this reader's own making has."""
    assert isinstance(found, dict)
    return found


def _trial(
    problem: Problem, config: KernelConfig, own_basis: str, source: KernelSource, values: dict[str, Any], own: Timed
) -> Trial:
    """The record of a line."""
    loaded = [values[name] for name in ("registers", "local_bytes", "smem_bytes", "blocks_per_sm")]
    if None in loaded and set(loaded) != {None}:
        raise ValueError("a part of what was loaded is missing")
    ratio = values["verdict_worst_ratio"]
    if ratio is None or ratio > 1:
        raise ValueError(f"a right result with an error of {ratio} times its bound")
    return Trial(
        problem=problem,
        config=config,
        basis=own_basis,
        source=source,
        outcome=Outcome.OK,
        detail="",
        resources=None if None in loaded else LoadedResources(*loaded),
        spill_bytes=values["spill_bytes"],
        guideline_broken=values["guideline_broken"],
        verdict=Verdict(True, ratio, UNTOLD),
        measurement=None,
        floor_us=own.values["floor_us"],
        compile_seconds=0.0,
        total_seconds=0.0,
        full_verdict=values["full_verdict"],
        cache=Cache(own.values["cache"]),
        is_between=bool(values["is_between"]),
        strategy=values["strategy"],
    )


def _once(known: dict[Any, Any], key: Any, value: Any) -> None:
    if key in known:
        raise ValueError(f"{shown(key)} is there twice")
    known[key] = value


def _key(value: Any) -> str:
    if not isinstance(value, str) or not _KEY.fullmatch(value):
        raise ValueError(f"{shown(value)} is no key")
    return value


def _list(value: Any) -> Sequence[Any]:
    if not isinstance(value, list) or not 1 <= len(value) <= 64:
        raise ValueError(f"{shown(value)} is no list of ours")
    return value


def problem_spelt(text: Any) -> Problem:
    if not isinstance(text, str):
        raise TypeError(f"{shown(text)} is no problem")
    problem = Problem.parse(text[:MOST_TEXT])
    if problem.text != text:
        raise ValueError(f"{shown(text)} is spelt otherwise")
    return problem


def device_of(run: RunKey) -> str:
    return str(run[RUN.index("device_name")])


def refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")
