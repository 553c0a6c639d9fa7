"""T4, the auto-tuning community's format of results, version 1.0.0: all trials of a problem, of every family.

https://github.com/odgaard/TuningSchema. The schema names `compilation_time`. Programs that read T4 expect
`compilation` and `benchmark`. The document has all of these members.
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
    """Return the entry as a T4 object."""
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
