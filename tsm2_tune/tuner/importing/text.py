"""Trials as a text: a line each, in JSON, in an order that a second text of them has, too.

The first line says what the members of the others are, and how many there are: a text that lost its end is refused.
A run, a basis and a kernel stand in a trial's line by the beginning
of their digests. Of a time the median is there, its interval and of how many samples they are, to the last
digit, and of an error over its bound three digits; of a kernel the configuration, from which this program makes its
text, and the beginning of its digest, by which it is told whether that is the one that was measured. Only trials that
went well are in it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.importing.union import RUN, Part, Round, RunKey, Timed, Tried

NAME, VERSION = "tsm2-tune trials", 4
DIGITS, SOURCE_DIGITS = 8, 16  # of a digest, that stand for it in the file; that tell kernels apart
TOOLS = tuple(name for name in RUN if name != "started_at")
TIME = ("final", "run", "cache", "median_us", "low_us", "high_us", "sm_clock_mhz", "samples")
OF_TRIAL = (  # columns of the table `trial`, as they are
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
# What the lines of earlier versions have, which can be read: finals had numbers alone, no basis was told, and not
# which machine code was verified; before, a trial's strategy was not stored.
TIME_OF_3 = ("round", *TIME[1:])
LINES_OF_3 = {
    **{kind: LINES[kind] for kind in ("tools", "run")},
    "trial": ("problem", "config", "source", *(name for name in OF_TRIAL if name != "verified_code"), "times"),
    "vendor": ("problem", *OF_VENDOR, *TIME_OF_3),
}
LINES_OF_2 = {**LINES_OF_3, "trial": tuple(name for name in LINES_OF_3["trial"] if name != "strategy")}
HEAD = {
    NAME: VERSION,
    "made by": "tsm2-tune export --format trials",
    "lines": LINES,
    "times": TIME,
    "units": "us: microseconds, the median of so many samples with its 95 % confidence interval; rates: 1e9 a second",
}

Entry = tuple[Problem, Part]  # of one device


def text_of(entries: Iterable[Entry]) -> str:
    """The text of these trials that went well, each with its own time and its last one in each state of the L2, and
    of the vendor's times in the rounds that are given.
    """
    writer = _Writer()
    for problem, part in entries:
        writer.add(problem, part)
    lines = list(writer.lines())
    return "".join(f"{_line(line)}\n" for line in ({**HEAD, "count": len(lines)}, *lines))


class _Writer:
    """Collects lines by kind."""

    def __init__(self) -> None:
        self._tools: dict[str, list[Any]] = {}
        self._runs: dict[str, list[Any]] = {}
        self._bases: dict[str, list[Any]] = {}
        self._finals: dict[str, list[Any]] = {}
        self._trials: list[tuple[Any, list[Any]]] = []  # each with what it is sorted by
        self._vendor: list[tuple[Any, list[Any]]] = []

    def add(self, problem: Problem, part: Part) -> None:
        """The lines of one problem on one device."""
        for key, tried in part.trials.items():
            values, config = tried.values, key[0]
            times = [self._time(None, one) for one in (tried.first,) if one is not None]
            times += [self._time(one, one.timed[key]) for one in _last(part.rounds, key)]
            facts = (_short(values[name]) for name in OF_TRIAL)
            own = (values["source_digest"][:SOURCE_DIGITS], self._keyed(self._bases, [tried.basis]), values["stamp"])
            line = ["trial", problem.text, config, *own, *facts, times]
            self._trials.append(((_device(tried.run), problem, config, _line(line)), line))
        for one in part.rounds:
            for library, timed in one.vendor.items():
                facts = (_short(timed.values[name]) for name in OF_VENDOR)
                place = (_device(one.run), problem, one.stamp, one.final, library)
                self._vendor.append((place, ["vendor", problem.text, *facts, *self._time(one, timed)]))

    def lines(self) -> Iterator[Sequence[Any]]:
        """All of them, in their order."""
        yield from (["tools", key, *values] for key, values in sorted(self._tools.items()))
        yield from (["run", key, *values] for key, values in sorted(self._runs.items(), key=lambda run: run[1][::-1]))
        yield from (["basis", key, *values] for key, values in sorted(self._bases.items()))
        finals = sorted(self._finals.items(), key=lambda final: (final[1][-1], final[0]))
        yield from (["final", key, *values] for key, values in finals)
        yield from (line for _, line in sorted(self._trials, key=lambda pair: pair[0]))
        yield from (line for _, line in sorted(self._vendor, key=lambda pair: pair[0]))

    def _run(self, run: RunKey) -> str:
        values = dict(zip(RUN, run, strict=True))
        tools = self._keyed(self._tools, [values[name] for name in TOOLS])
        return self._keyed(self._runs, [tools, values["started_at"]])

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
    """Return the trial's last round in each state of the L2, in order."""
    last = {one.timed[key].values["cache"]: one for one in rounds if key in one.timed}
    return sorted(last.values(), key=lambda one: (one.stamp, one.final))


def has_line(tried: Tried) -> bool:
    """Whether a text has a line for the trial: it gave a right result and was timed."""
    return tried.values["outcome"] == "ok" and tried.values["verdict_correct"] == 1 and tried.first is not None


def _device(run: RunKey) -> str:
    return str(run[RUN.index("device_name")])


def _short(value: Any) -> Any:
    """Return a ratio of errors with three digits; None if it is infinite, for which JSON has no number."""
    if not isinstance(value, float):
        return value
    return None if math.isinf(value) else float(f"{value:.3g}")


def _line(values: object) -> str:
    return json.dumps(values, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
