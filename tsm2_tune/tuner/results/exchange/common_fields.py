"""The fields of a trial that other autotuners' formats have too: time, failure, compile time and benchmark time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tsm2_tune.tuner.results.exchange.entry import Entry
from tsm2_tune.tuner.results.merge.union import Timed, TrialKey
from tsm2_tune.tuner.results.trial import Outcome

TIMED = (Outcome.OK, Outcome.BEHIND)  # a trial that was BEHIND has the time of its first launches
TIME = "time"  # name of the member with a trial's time
RESOURCES = ("registers", "local_bytes", "smem_bytes", "blocks_per_sm", "spill_bytes")  # columns of `trial`
WORDS = {  # Kernel Tuner's names of errors; it has none for a wrong result and a time-out
    Outcome.COMPILE_FAILED: "CompilationFailedConfig",
    Outcome.LAUNCH_FAILED: "RuntimeFailedConfig",
    Outcome.WRONG_RESULT: "RuntimeFailedConfig",
    Outcome.TIMED_OUT: "RuntimeFailedConfig",
    Outcome.CRASHED: "RuntimeFailedConfig",
}


@dataclass(frozen=True, slots=True)
class Result:
    """A trial (one kernel configuration, tried once), with times in milliseconds."""

    family: str
    tunables: dict[str, int | str]  # by name
    outcome: Outcome
    compile_ms: float
    other_ms: float  # time for verifying and timing
    ended_at: str  # ISO 8601, UTC
    time_ms: float | None  # the median of its newest measurement; None if it failed
    samples_ms: list[float]  # samples of the newest measurement
    measured: dict[str, float]  # further numbers: the rate and the kernel's resources

    @property
    def time(self) -> float | str:
        """The kernel's time in milliseconds or, if the trial failed, Kernel Tuner's name of the error."""
        return WORDS[self.outcome] if self.time_ms is None else self.time_ms


def results(entry: Entry) -> Iterator[Result]:
    """Yield a Result for each trial in `entry`, sorted by configuration."""
    for key, tried in sorted(entry.part.trials.items(), key=lambda item: item[0]):
        values = tried.values
        timed = _newest(entry, key) if values["outcome"] in TIMED else None
        measured: dict[str, float] = {}
        if timed is not None:
            measured["GFLOP/s"] = entry.problem.flops / timed.values["median_us"] / 1e3
        measured |= {name: values[name] for name in RESOURCES if values[name] is not None}
        compile_ms, total_ms = 1e3 * values["compile_seconds"], 1e3 * values["total_seconds"]
        yield Result(
            family=values["family"],
            tunables=dict(sorted(json.loads(values["tunables"]).items())),
            outcome=Outcome(values["outcome"]),
            compile_ms=compile_ms,
            other_ms=max(total_ms - compile_ms, 0.0),
            ended_at=values["ended_at"],
            time_ms=None if timed is None else timed.values["median_us"] / 1e3,
            samples_ms=[] if timed is None else [us / 1e3 for us in timed.samples_us],
            measured=measured,
        )


def metadata(entry: Entry) -> dict[str, Any]:
    """Return metadata for the file: the device, the compiler and the settings of the newest tuning run."""
    run = entry.newest_run
    names = ("device_name", "compute_capability", "driver", "toolkit", "flags")
    return {
        **{name: run[name] for name in names},
        "problem": entry.problem.text,
        "l2_before_each_sample": entry.cache.value,
        "tuner": f"tsm2-tune {run['version']}",
    }


def _newest(entry: Entry, key: TrialKey) -> Timed | None:
    """Return the trial's time in the latest final comparison that was timed in the entry's L2 cache state.

    If the trial took part in no such comparison, return the time that the search measured.
    """
    finals = (one.timed[key] for one in entry.part.rounds if key in one.timed)
    of_state = [timed for timed in finals if timed.values["cache"] == entry.cache]
    return of_state[-1] if of_state else entry.part.trials[key].first
