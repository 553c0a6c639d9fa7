"""The cache file of Kernel Tuner 1.5, which Kernel Tuner's simulation mode reads. A file has the trials of one kernel
family.

The key of each cache entry consists of the values of the tunable parameters, joined by commas. `cache` must be the
last member of the file's JSON object. Otherwise Kernel Tuner treats the file as truncated.
"""

from __future__ import annotations

from typing import Any

from tsm2_tune.tuner.results.exchange.common_fields import TIME, Result, metadata, results
from tsm2_tune.tuner.results.exchange.entry import NAME, Entry, record_of


def document(entry: Entry) -> dict[str, Any]:
    """Return the entry as the JSON object of a Kernel Tuner cache file. All trials must be of one kernel family."""
    found = list(results(entry))
    names = list(found[0].tunables)
    problem = entry.problem
    return {
        "schema_version": "1.1.0",
        "device_name": entry.device,
        "kernel_name": found[0].family,
        "problem_size": [problem.m, problem.n, problem.k],
        "tune_params_keys": names,
        "tune_params": {name: sorted({one.tunables[name] for one in found}) for name in names},
        "objective": TIME,
        "metadata": metadata(entry),
        NAME: record_of(entry),
        "cache": {",".join(map(str, one.tunables.values())): _entry(one) for one in found},
    }


def _entry(one: Result) -> dict[str, Any]:
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
