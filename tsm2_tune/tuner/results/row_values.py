"""Convert dataclass objects to the values of database rows, by column."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.source import KernelSource
from tsm2_tune.tuner.results.columns import values_of
from tsm2_tune.tuner.results.storage import schema
from tsm2_tune.tuner.results.trial import Measurement, Trial, TuningRun

LIMITS = ("compile_limit_seconds", "run_limit_seconds")  # columns of `trial`


def measurement_values(
    measured: Measurement, trial_id: int, *, run_id: int, round_: int, floor_us: float
) -> dict[str, Any]:
    """Return the values of a row of `measurement`. The time samples are rows of the table `sample`."""
    own = {"trial_id": trial_id, "run_id": run_id, "round": round_, "floor_us": floor_us}
    return own | values_of(measured, schema.measurement)


def run_values(run: TuningRun) -> dict[str, Any]:
    """Return the values of a row of `run`, by column."""
    identity, ceilings = run.identity, run.ceilings
    return {
        "device_name": identity.name,
        "device_uuid": identity.uuid,
        "compute_capability": identity.compute_capability,
        "driver": identity.driver,
        "toolkit": identity.toolkit,
        "flags": identity.flags,
        "version": run.version,
        "seed": run.seed,
        "started_at": run.started_at,
        "read_gbytes_per_s": ceilings.read_gbytes_per_s,
        "copy_gbytes_per_s": ceilings.copy_gbytes_per_s,
        "gflops": json.dumps(dict(ceilings.gflops)),
        "sms": run.sms,
    }


def problem_key(problem: Problem) -> dict[str, Any]:
    """Return the values of the columns that identify a row of `problem`."""
    return {"op": problem.op, "dtype": problem.dtype_name, "m": problem.m, "n": problem.n, "k": problem.k}


def problem_values(problem: Problem) -> dict[str, Any]:
    """Return the values of a row of `problem`, by column."""
    return {**problem_key(problem), "flops": problem.flops, "least_bytes": problem.least_bytes}


def source_values(source: KernelSource) -> dict[str, Any]:
    """Return the values of a row of `source`, by column, with the text for its paragraphs."""
    return {
        "digest": source.digest,
        "kernel": source.kernel,
        "text": source.text,
        "dtype": source.dtype_name,
        **{name: int(value) for name, value in source.launch.as_rendered.items()},
    }


def trial_values(trial: Trial) -> dict[str, Any]:
    """Return the values of a row of `trial`, by column, except the columns for its run, device, problem and basis."""
    return {
        **values_of(trial, schema.trial),
        "family": trial.config.family,
        "config": trial.config.text,
        "tunables": trial.config.json,
        "source_digest": trial.source.digest,
        **{name: getattr(trial.source.launch, name) for name in schema.LAUNCH_OF_TRIAL},
        "superseded": 0,
        "search_ended": None,
        "ended_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
