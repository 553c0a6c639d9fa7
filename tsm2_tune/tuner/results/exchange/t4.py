"""T4, version 1.0.0: a JSON format for the results of autotuners. A file has all trials of one problem.

The format is defined at https://github.com/odgaard/TuningSchema. The schema requires the member `compilation_time`.
Programs that read T4 expect `compilation` and `benchmark`. The document has all three members.
"""

from __future__ import annotations

from typing import Any

from tsm2_tune.tuner.results.exchange.common_fields import TIME, Result, metadata, results
from tsm2_tune.tuner.results.exchange.entry import NAME, Entry, record_of
from tsm2_tune.tuner.results.trial import Outcome

INVALIDITY = {
    Outcome.OK: "correct",
    Outcome.BEHIND: "correct",
    Outcome.COMPILE_FAILED: "compile",
    Outcome.LAUNCH_FAILED: "runtime",
    Outcome.WRONG_RESULT: "correctness",
    Outcome.TIMED_OUT: "timeout",
    Outcome.CRASHED: "runtime",
}
UNITS = {"GFLOP/s": "GFLOP/s", "local_bytes": "B", "smem_bytes": "B", "spill_bytes": "B"}  # others have no unit


def document(entry: Entry) -> dict[str, Any]:
    """Return the entry as the JSON object of a T4 file."""
    return {
        "schema_version": "1.0.0",
        "metadata": {"timeunit": "milliseconds", **metadata(entry)},
        "results": [_item(one) for one in results(entry)],
        NAME: record_of(entry),
    }


def _item(one: Result) -> dict[str, Any]:
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
        "invalidity": INVALIDITY[one.outcome],
        "correctness": 0 if one.outcome is Outcome.WRONG_RESULT else 1,
        "measurements": [{"name": TIME, "value": one.time, "unit": "ms"}, *others],
        "objectives": [TIME],
    }
