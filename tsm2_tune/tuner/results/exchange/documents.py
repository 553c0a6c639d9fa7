"""Other autotuners' formats: T4, and the cache file of Kernel Tuner. Each has the fields that it shares with a trial.

T4, version 1.0.0, is a JSON format for the results of autotuners: https://github.com/odgaard/TuningSchema. A file has
all trials of one problem. The schema requires the member `compilation_time`. Programs that read T4 expect
`compilation` and `benchmark`. The document has all three members.

Kernel Tuner 1.5 reads the cache file in its simulation mode. A file has the trials of one kernel family. The key of
each cache entry consists of the values of the tunable parameters, joined by commas. `cache` must be the last member
of the file's JSON object. Otherwise Kernel Tuner treats the file as truncated.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tsm2_tune.tuner.results.exchange.entry import NAME, Entry, record_of
from tsm2_tune.tuner.results.merge.union import Timed, TrialKey
from tsm2_tune.tuner.results.trial import Outcome

TIMED = (Outcome.OK, Outcome.BEHIND)  # a trial that was BEHIND has the time of its first launches
TIME = "time"  # name of the member with a trial's time
RESOURCES = ("registers", "local_bytes", "smem_bytes", "blocks_per_sm", "spill_bytes")  # columns of `trial`
FAULT = "RuntimeFailedConfig"  # of Kernel Tuner, which has no error for a wrong result and a time-out
OUTCOMES = {  # outcome -> (T4's `invalidity`, Kernel Tuner's error)
    Outcome.OK: ("correct", ""),
    Outcome.BEHIND: ("correct", ""),
    Outcome.COMPILE_FAILED: ("compile", "CompilationFailedConfig"),
    Outcome.LAUNCH_FAILED: ("runtime", FAULT),
    Outcome.WRONG_RESULT: ("correctness", FAULT),
    Outcome.TIMED_OUT: ("timeout", FAULT),
    Outcome.CRASHED: ("runtime", FAULT),
}
UNITS = {"GFLOP/s": "GFLOP/s", "local_bytes": "B", "smem_bytes": "B", "spill_bytes": "B"}  # others have no unit


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
        return OUTCOMES[self.outcome][1] if self.time_ms is None else self.time_ms


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
    """Return the trial's time in the latest final comparison that was timed in the entry's L2 cache state."""
    finals = (one.timed[key] for one in entry.part.rounds if key in one.timed)
    of_state = [timed for timed in finals if timed.values["cache"] == entry.cache]
    return of_state[-1] if of_state else entry.part.trials[key].first


def t4_document(entry: Entry) -> dict[str, Any]:
    """Return the entry as the JSON object of a T4 file."""
    return {
        "schema_version": "1.0.0",
        "metadata": {"timeunit": "milliseconds", **metadata(entry)},
        "results": [_t4_item(one) for one in results(entry)],
        NAME: record_of(entry),
    }


def _t4_item(one: Result) -> dict[str, Any]:
    others = [{"name": name, "value": value, "unit": UNITS.get(name, "")} for name, value in one.measured.items()]
    return {
        "timestamp": one.ended_at,
        "configuration": {"family": one.family, **one.tunables},
        "times": {
            "compilation": one.compile_ms,
            "compilation_time": one.compile_ms,
            "benchmark": one.other_ms,
            "framework": 0.0,
            "search_algorithm": 0.0,
            "validation": 0.0,
            "runtimes": one.samples_ms,
        },
        "invalidity": OUTCOMES[one.outcome][0],
        "correctness": 0 if one.outcome is Outcome.WRONG_RESULT else 1,
        "measurements": [{"name": TIME, "value": one.time, "unit": "ms"}, *others],
        "objectives": [TIME],
    }


def kernel_tuner_document(entry: Entry) -> dict[str, Any]:
    """Return the entry as the JSON object of a Kernel Tuner cache file. All trials must be of one kernel family."""
    found = list(results(entry))
    names = list(found[0].tunables)
    problem = entry.problem
    return {
        "schema_version": "1.1.0",
        "device_name": entry.device,
        "kernel_name": found[0].family,
        "problem_size": [problem.m, problem.n, problem.k, *[problem.batch] * problem.is_batched],
        "tune_params_keys": names,
        "tune_params": {name: sorted({one.tunables[name] for one in found}) for name in names},
        "objective": TIME,
        "metadata": metadata(entry),
        NAME: record_of(entry),
        "cache": {",".join(map(str, one.tunables.values())): _cache_entry(one) for one in found},
    }


def _cache_entry(one: Result) -> dict[str, Any]:
    times = {"times": one.samples_ms} if one.samples_ms else {}
    failed = {"__error__": one.time} if isinstance(one.time, str) else {}
    return {
        **one.tunables,
        TIME: one.time,
        **times,
        **failed,
        "compile_time": one.compile_ms,
        "verification_time": 0.0,
        "benchmark_time": one.other_ms,
        "strategy_time": 0.0,
        "framework_time": 0.0,
        "timestamp": one.ended_at,
        **one.measured,
    }


DOCUMENTS: dict[str, Callable[[Entry], dict[str, Any]]] = {
    "t4": t4_document,
    "kernel-tuner-cache": kernel_tuner_document,
}
