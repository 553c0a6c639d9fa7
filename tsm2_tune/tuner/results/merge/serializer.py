"""Write trials with correct results to a text file, with one JSON value per line. Equal trials give equal files.

The first line names the fields of the other lines. It also contains the number of lines, so that a truncated file is
detected. A column that older versions lack is omitted if it is NULL in all trials. A trial's line refers to its run,
basis and kernel source by prefixes of their SHA-256 digests. The file has no kernel sources. The reader generates a
kernel from its configuration, and compares the kernel's digest with the prefix in the line. A time is the median with
its confidence interval, in full precision, and the number of samples. The ratio of an error to its bound has three
digits.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import compress
from typing import Any

from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results.merge.union import RUN, Part, Round, RunKey, Timed, Tried, device_of
from tsm2_tune.tuner.results.storage import schema
from tsm2_tune.tuner.results.storage.addresses import TEXT_FORMAT

NAME, VERSION = TEXT_FORMAT, 4
DIGITS, SOURCE_DIGITS = 8, 16  # digits of a run's or basis's digest; of a kernel's digest
TOOLS = tuple(name for name in RUN if name != "started_at")
TIME = ("final", "run", "cache", "median_us", "low_us", "high_us", "sm_clock_mhz", "samples")
OF_TRIAL = (  # columns of the table `trial`, written unchanged
    "is_between", "strategy", "registers", "local_bytes", "smem_bytes", "blocks_per_sm", "spill_bytes",
    "guideline_broken", "full_verdict", "verified_code", "verdict_worst_ratio",
)  # fmt: skip
OF_VENDOR = ("library", "library_version", "routine", "verdict_correct", "verdict_worst_ratio")
LINES = {
    "tools": ("key", *TOOLS),
    "run": ("key", "tools", "started_at"),
    "basis": ("key", "digest"),
    "final": ("key", "run", "stamp"),
    "trial": ("problem", "config", "source", "basis", "stamp", *OF_TRIAL, "times"),
    "vendor": ("problem", *OF_VENDOR, *TIME),
}
HEAD = {
    NAME: VERSION,
    "made by": "tsm2-tune export --format trials",
    "lines": LINES,
    "times": TIME,
    "units": "us: microseconds, the median of so many samples with its 95 % confidence interval; rates: 1e9 a second",
}

Entry = tuple[Problem, Part]  # a problem, and its rows on one device


def text_of(entries: Iterable[Entry]) -> str:
    """Return the text file of these trials and of the vendor libraries' times.

    A trial's line has the time of the search, and for each L2 cache state that of its last final comparison.
    """
    writer = _Writer()
    for problem, part in entries:
        writer.add(problem, part)
    lines = list(writer.lines())
    head = {**HEAD, "lines": lines_without(writer.omitted), "count": len(lines)}
    return "".join(f"{_line(line)}\n" for line in (head, *lines))


def later_columns() -> set[str]:
    """Return the columns in OF_TRIAL that files of older versions lack."""
    return {name for name in OF_TRIAL if schema.trial.c[name].info["later"]}


def lines_without(columns: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Return LINES without these columns of a trial."""
    return {**LINES, "trial": tuple(name for name in LINES["trial"] if name not in columns)}


class _Writer:
    """Collection of the lines of a text file, by kind."""

    def __init__(self) -> None:
        self._keys: dict[RunKey | str, str] = {}  # of runs and bases
        self._tools: dict[str, list[Any]] = {}
        self._runs: dict[str, list[Any]] = {}
        self._bases: dict[str, list[Any]] = {}
        self._finals: dict[str, list[Any]] = {}
        self._trials: list[tuple[Any, list[Any]]] = []  # each with its sort key
        self._vendor: list[tuple[Any, list[Any]]] = []
        self.omitted = later_columns()  # those that are NULL in all trials

    def add(self, problem: Problem, part: Part) -> None:
        """Add the lines of one problem on one device."""
        for key, tried in part.trials.items():
            values, config = tried.values, key[0]
            self.omitted = {name for name in self.omitted if values[name] is None}
            times = [self._time(None, one) for one in (tried.first,) if one is not None]
            times += [self._time(one, one.timed[key]) for one in _last(part.rounds, key)]
            facts = (_short(values[name]) for name in OF_TRIAL)
            own = (values["source_digest"][:SOURCE_DIGITS], self._basis(tried.basis), values["stamp"])
            line = ["trial", problem.text, config, *own, *facts, times]
            self._trials.append(((device_of(tried.run), problem, config, _line(line)), line))
        for one in part.rounds:
            for library, timed in one.vendor.items():
                facts = (_short(timed.values[name]) for name in OF_VENDOR)
                place = (device_of(one.run), problem, one.stamp, one.final, library)
                self._vendor.append((place, ["vendor", problem.text, *facts, *self._time(one, timed)]))

    def lines(self) -> Iterator[Sequence[Any]]:
        """Yield all lines, sorted."""
        yield from (["tools", key, *values] for key, values in sorted(self._tools.items()))
        yield from (["run", key, *values] for key, values in sorted(self._runs.items(), key=lambda run: run[1][::-1]))
        yield from (["basis", key, *values] for key, values in sorted(self._bases.items()))
        finals = sorted(self._finals.items(), key=lambda final: (final[1][-1], final[0]))
        yield from (["final", key, *values] for key, values in finals)
        kept = [True, *(name not in self.omitted for name in LINES["trial"])]
        yield from (list(compress(line, kept)) for _, line in sorted(self._trials, key=lambda pair: pair[0]))
        yield from (line for _, line in sorted(self._vendor, key=lambda pair: pair[0]))

    def _run(self, run: RunKey) -> str:
        if run not in self._keys:
            values = dict(zip(RUN, run, strict=True))
            tools = self._keyed(self._tools, [values[name] for name in TOOLS])
            self._keys[run] = self._keyed(self._runs, [tools, values["started_at"]])
        return self._keys[run]

    def _basis(self, basis: str) -> str:
        if basis not in self._keys:
            self._keys[basis] = self._keyed(self._bases, [basis])
        return self._keys[basis]

    def _keyed(self, known: dict[str, list[Any]], values: list[Any]) -> str:
        key = hashlib.sha256(_line(values).encode()).hexdigest()[:DIGITS]
        if known.setdefault(key, values) != values:
            raise ValueError(f"two lines have the key {key}")
        return key

    def _time(self, final: Round | None, timed: Timed) -> list[Any]:
        v = timed.values
        if final is not None:
            self._finals[final.final] = [self._run(final.run), final.stamp]
        times = (v["median_us"], v["low_us"], v["high_us"], v["sm_clock_mhz"])
        return [
            final and final.final,
            self._run(timed.run),
            v["cache"],
            *times,
            v["summary_of"] or len(timed.samples_us),
        ]


def _last(rounds: Sequence[Round], key: tuple[str, str]) -> list[Round]:
    """Return the trial's last final comparison in each L2 cache state, in order of time."""
    last = {one.timed[key].values["cache"]: one for one in rounds if key in one.timed}
    return sorted(last.values(), key=lambda one: (one.stamp, one.final))


def has_line(tried: Tried) -> bool:
    """Return whether the trial has a line in a text file: its result was correct, and it was timed."""
    return tried.values["outcome"] == "ok" and tried.values["verdict_correct"] == 1 and tried.first is not None


def _short(value: Any) -> Any:
    """Return a number rounded to three digits, or None for infinity, which JSON lacks; else the value."""
    if not isinstance(value, float):
        return value
    return None if math.isinf(value) else float(f"{value:.3g}")


def _line(values: object) -> str:
    return json.dumps(values, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
