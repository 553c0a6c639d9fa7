"""Read the trials of a text file that `serializer.py` wrote. The file is untrusted, so each value is checked."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any, TypeVar

from tsm2_tune.errors import InputError, shown
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.device.roofline import Ceilings
from tsm2_tune.generator.families import parse_config
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.generator.source import KernelSource
from tsm2_tune.tuner.results import records
from tsm2_tune.tuner.results.columns import nested_of
from tsm2_tune.tuner.results.domains import Row, checked
from tsm2_tune.tuner.results.merge.reader import own_columns
from tsm2_tune.tuner.results.merge.serializer import (
    DIGITS,
    LINES,
    NAME,
    OF_TRIAL,
    OF_VENDOR,
    SOURCE_DIGITS,
    TIME,
    TOOLS,
    VERSION,
    later_columns,
    lines_without,
)
from tsm2_tune.tuner.results.merge.union import (
    RUN,
    STARTED_AT,
    Part,
    Round,
    RunKey,
    Timed,
    TrialKey,
    Tried,
    device_of,
)
from tsm2_tune.tuner.results.storage import schema
from tsm2_tune.tuner.results.trial import LoadedResources, Outcome, Verdict, in_a_line

LINES_SHOWN = 100  # lines between two reports of progress
UNTOLD = "right, by a file of trials"
MOST_TEXT = 100  # characters of a configuration or problem in a sentence
MOST_PROBLEMS = 4096  # at hand, since a problem has many lines
_OF_TRIAL = tuple(schema.trial.c[name] for name in ("config", *OF_TRIAL, "stamp"))
_OF_VENDOR = tuple(schema.vendor_measurement.c[name] for name in OF_VENDOR)
_OF_TIME = tuple(schema.measurement.c[name] for name in (*TIME[:1], *TIME[2:-1], "summary_of"))
_OF_FINAL = tuple(schema.measurement.c[name] for name in ("final", "final_stamp"))
# Values of a row of `trial` that no file of trials has. Its trials have correct results.
_OF_ANY_TRIAL = {
    **dict.fromkeys(one.name for one in own_columns(schema.trial)),
    "outcome": Outcome.OK.value,
    "detail": "",
    "verdict_correct": 1,
    "verdict_detail": UNTOLD,
    "compile_seconds": 0.0,
    "total_seconds": 0.0,
    "superseded": 0,
}
_KEY, _SOURCE = re.compile(rf"[0-9a-f]{{{DIGITS}}}"), re.compile(rf"[0-9a-f]{{{SOURCE_DIGITS}}}")
WRONG = (InputError, ArithmeticError, LookupError, RecursionError, TypeError, ValueError)


@dataclass(slots=True)
class ParsedTrials:
    """The trials that were read from a text file."""

    parts: dict[tuple[str, Problem], Part] = field(default_factory=dict)  # by device and problem
    sources: dict[str, KernelSource] = field(default_factory=dict)  # by digest
    left_out: dict[str, str] = field(default_factory=dict)  # the reason, by configuration

    def source(self, digest: str) -> Row:
        """Return the row of the kernel source with this digest, and its text."""
        return records.source_values(self.sources[digest])


def parse_content(path: Path, content: bytes, show: Callable[[float], object] = lambda share: None) -> ParsedTrials:
    """Return the trials in the content of the text file `path`. `show` is called with the fraction that was read.

    Raise InputError, with the number of the line, if a line is not what this program would write.
    """
    reader, stream = _Reader(), BytesIO(content)
    number = 0
    try:
        for number, line in enumerate(TextIOWrapper(stream, json.detect_encoding(content)), 1):
            if number % LINES_SHOWN == 0:
                show(stream.tell() / len(content))
            if not line.isspace():
                reader.read(_DECODER.decode(line), is_head=number == 1)
        return reader.finish()
    except WRONG as error:
        raise _unlike(path, number, error, content) from None


def _unlike(path: Path, number: int, error: Exception, content: bytes) -> InputError:
    """Return the InputError for an invalid line."""
    message = "it is not JSON" if isinstance(error, json.JSONDecodeError) else str(error) or type(error).__name__
    if isinstance(error, UnicodeDecodeError):  # of a part of the content
        try:
            content.decode(error.encoding)
        except UnicodeDecodeError as whole:
            before = content[: whole.start].decode(error.encoding, errors="replace")
            number, message = 1 + before.count("\n"), f"it is not {error.encoding.upper()}"
    return InputError(
        f"{path}, line {number}, is not as this tsm2-tune writes it ({in_a_line(message)[:300]}): write it again"
        " with tsm2-tune export --format trials"
    )


T = TypeVar("T")
Place = tuple[str, Problem]  # device and problem
_Times = tuple[dict[TrialKey, Timed], dict[str, Timed]]  # times of kernels, and times of vendor libraries by name


class _Reader:
    """Parser of the lines of a file of trials. A line may refer only to earlier lines."""

    def __init__(self) -> None:
        self._missing = 0  # lines after the head
        self._lines = LINES
        self._later = dict.fromkeys(later_columns())
        self._tools: dict[str, dict[str, Any]] = {}
        self._runs: dict[str, tuple[RunKey, Ceilings]] = {}
        self._trials = defaultdict[Place, dict[TrialKey, Tried]](dict)
        self._bases: dict[str, str] = {}
        self._finals: dict[str, tuple[RunKey, int]] = {}  # run and stamp
        self._rounds = defaultdict[Place, dict[str, _Times]](dict)  # by the final comparison's id
        self._parsed = ParsedTrials()
        self._kinds = {
            "tools": self._read_tools,
            "run": self._read_run,
            "basis": self._read_basis,
            "final": self._read_final,
            "trial": self._read_trial,
            "vendor": self._read_vendor,
        }

    def read(self, line: Any, *, is_head: bool) -> None:
        """Read one line. Raise ValueError or another of the exceptions in WRONG if the line is invalid."""
        if is_head:
            self._read_head(line)
            return
        self._missing -= 1
        if not isinstance(line, list) or not line or not isinstance(line[0], str) or line[0] not in LINES:
            raise ValueError(f"{shown(line)} is not a line of this format")
        names = self._lines[line[0]]
        if len(line) != 1 + len(names):
            raise ValueError(f"{line[0]} has {len(line) - 1} members, and not {len(names)}")
        self._kinds[line[0]](dict(zip(names, line[1:], strict=True)))

    def _read_head(self, line: Any) -> None:
        version = line.get(NAME) if isinstance(line, dict) else None
        if type(version) is not int or version != VERSION:
            raise ValueError(f"its version is {shown(version)}, and not {VERSION}")
        found = line.get("lines")
        members = found.get("trial") if isinstance(found, dict) else None
        if isinstance(members, list):
            self._lines = lines_without([name for name in self._later if name not in members])
        if found != json.loads(json.dumps(self._lines)) or line.get("times") != list(TIME):
            raise ValueError("its lines have other members")
        if type(line.get("count")) is not int:
            raise ValueError("it does not contain its number of lines")
        self._missing = line["count"]

    def finish(self) -> ParsedTrials:
        """Return all trials that were read. Raise ValueError if the number of lines differs from the number in the
        first line.
        """
        if self._missing:
            raise ValueError(f"{abs(self._missing)} lines {'are missing' if self._missing > 0 else 'too many'}")
        for place, trials in self._trials.items():
            finals = ((*self._finals[at], at, times) for at, times in self._rounds[place].items())
            rounds = [Round(run, at, stamp, *times) for run, stamp, at, times in finals]
            self._parsed.parts[place] = Part(trials, sorted(rounds, key=lambda one: one.place))
        return self._parsed

    def _read_tools(self, line: dict[str, Any]) -> None:
        _once(self._tools, _key(line["key"]), {name: line[name] for name in TOOLS})

    def _read_run(self, line: dict[str, Any]) -> None:
        values = {**_earlier(self._tools, "tools", _key(line["tools"])), "started_at": line["started_at"]}
        run = records.tuning_run({"id": 0, **values})
        _once(self._runs, _key(line["key"]), (tuple(values[name] for name in RUN), run.ceilings))

    def _read_basis(self, line: dict[str, Any]) -> None:
        digest = checked(line, [schema.source.c.digest])["digest"]
        _once(self._bases, _key(line["key"]), digest)

    def _read_final(self, line: dict[str, Any]) -> None:
        values = checked({"final": line["key"], "final_stamp": line["stamp"]}, _OF_FINAL)
        if None in values.values():
            raise ValueError("a final without key or stamp")
        _once(
            self._finals, values["final"], (_earlier(self._runs, "run", _key(line["run"]))[0], values["final_stamp"])
        )

    def _read_trial(self, line: dict[str, Any]) -> None:
        values = checked(self._later | line, _OF_TRIAL)
        problem = parse_problem(line["problem"])
        times = [self._time(problem, time) for time in _list(line["times"])]
        device = device_of(times[0][1].run)
        config, source = self._kernel(problem, values["config"], line["source"], device)
        if config is None or source is None:
            return
        (at, own), *finals = times
        if at is not None or any(at is None or device_of(one.run) != device for at, one in finals):
            raise ValueError(
                "its first time does not belong to it, or another time does not belong to a final on its device"
            )
        self._parsed.sources[source.digest] = source
        stored = {
            **_OF_ANY_TRIAL,
            **values,
            **records.kernel_values(config, source),
            "basis": _earlier(self._bases, "basis", _key(line["basis"])),
            "ended_at": own.run[STARTED_AT],  # the file has no later time
            **{name: own.values[name] for name in ("cache", "floor_us")},
        }
        nested_of(LoadedResources, stored)
        nested_of(Verdict, stored)
        place, tried = (device, problem), Tried(own.run, stored, own)
        key = tried.key
        _once(self._trials[place], key, tried)
        for at, timed in finals:
            _once(self._members(place, at, timed)[0], key, timed)

    def _read_vendor(self, line: dict[str, Any]) -> None:
        ratio = math.inf if line["verdict_worst_ratio"] is None else line["verdict_worst_ratio"]
        detail = UNTOLD if line["verdict_correct"] == 1 else "wrong, by a file of trials"
        values = checked(line | {"verdict_worst_ratio": ratio}, _OF_VENDOR) | {"verdict_detail": detail}
        nested_of(Verdict, values)
        problem = parse_problem(line["problem"])
        at, timed = self._time(problem, [line[name] for name in TIME])
        kept = {name: value for name, value in timed.values.items() if name != "floor_us"}
        vendor = Timed(timed.run, kept | values, ())
        _once(self._members((device_of(timed.run), problem), at, vendor)[1], values["library"], vendor)

    def _members(self, place: Place, at: str | None, timed: Timed) -> _Times:
        """Return the measurements of the final comparison to which the measurement `timed` belongs, as two dicts."""
        if at is None:
            raise ValueError("a time does not belong to a final")
        if _earlier(self._finals, "final", at)[0] != timed.run:
            raise ValueError("a time belongs to another run than its final")
        return self._rounds[place].setdefault(at, ({}, {}))

    def _time(self, problem: Problem, members: Any) -> tuple[str | None, Timed]:
        """Return (id of the final comparison, measurement). The id is None if the search made the measurement."""
        line = dict(zip(TIME, _list(members), strict=True))
        values = checked(line | {"summary_of": line["samples"]}, _OF_TIME)
        if values["summary_of"] is None:
            raise ValueError("a time has no samples")
        records.check_interval(values["low_us"], values["median_us"], values["high_us"])
        run, ceilings = _earlier(self._runs, "run", _key(line["run"]))
        final = values.pop("final")
        return final, Timed(run, values | {"slowed": None, "floor_us": ceilings.floor_us(problem)}, ())

    def _kernel(
        self, problem: Problem, text: str, source: Any, device: str
    ) -> tuple[KernelConfig, KernelSource] | tuple[None, None]:
        """Return the configuration and its kernel."""
        if not isinstance(source, str) or not _SOURCE.fullmatch(source):
            raise ValueError(f"{shown(source)} is not the beginning of a digest")
        config = parse_config(text)
        if config is None or not records.is_of_this_version(config, problem):
            why = f"{text}, measured on {device}, is not a configuration of this tsm2-tune"
        else:
            made = render(problem, config)
            if made.digest.startswith(source):
                return config, made
            why = f"{text}, measured on {device}, has other kernel code in this tsm2-tune: tune {problem.text} again"
        self._parsed.left_out.setdefault(text, f"left out: {why}")
        return None, None


def _once(known: dict[Any, Any], key: Any, value: Any) -> None:
    if key in known:
        raise ValueError(f"{shown(key)} appears twice")
    known[key] = value


def _key(value: Any) -> str:
    if not isinstance(value, str) or not _KEY.fullmatch(value):
        raise ValueError(f"{shown(value)} is not a key")
    return value


def _earlier(known: Mapping[str, T], kind: str, key: str) -> T:
    """Return the value of an earlier line of this kind. Raise ValueError if no earlier line has the key."""
    if key not in known:
        raise ValueError(f"no line before has the {kind} {key}")
    return known[key]


def _list(value: Any) -> Sequence[Any]:
    if not isinstance(value, list) or not 1 <= len(value) <= 64:
        raise ValueError(f"{shown(value)} is not a list of this format")
    return value


def parse_problem(text: Any) -> Problem:
    if not isinstance(text, str):
        raise TypeError(f"{shown(text)} is no problem")
    return _problem(text)


@lru_cache(maxsize=MOST_PROBLEMS)
def _problem(text: str) -> Problem:
    problem = Problem.parse(text[:MOST_TEXT])
    if problem.text != text:
        raise ValueError(f"{shown(text)} is not in canonical form")
    return problem


def refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


_DECODER = json.JSONDecoder(parse_constant=refuse_constant)
