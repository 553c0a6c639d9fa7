"""Convert dataclass objects to the values of database rows, by column."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.source import KernelSource
from tsm2_tune.tuner.results.storage import schema
from tsm2_tune.tuner.results.trial import Measurement, Trial, TuningRun
from tsm2_tune.tuner.results.validation import MOST_DETAIL

LIMITS = ("compile_limit_seconds", "run_limit_seconds")  # columns of `trial`


def measurement_values(
    measured: Measurement, trial_id: int, *, run_id: int, round_: int, floor_us: float
) -> dict[str, Any]:
    """Return the values of a row of `measurement`. The time samples are rows of the table `sample`."""
    return {
        "trial_id": trial_id,
        "run_id": run_id,
        "round": round_,
        "median_us": measured.median_us,
        "low_us": measured.low_us,
        "high_us": measured.high_us,
        "sm_clock_mhz": measured.sm_clock_mhz,
        "floor_us": floor_us,
        "cache": measured.cache.value,
        "summary_of": measured.summary_of,
        "slowed": measured.slowed,
    }


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
    resources, verdict = trial.resources, trial.verdict
    return {
        "family": trial.config.family,
        "tunables": trial.config.json,
        "source_digest": trial.source.digest,
        **{name: getattr(trial.source.launch, name) for name in schema.LAUNCH_OF_TRIAL},
        "outcome": trial.outcome.value,
        "detail": trial.detail[:MOST_DETAIL],
        "registers": resources.registers if resources else None,
        "local_bytes": resources.local_bytes if resources else None,
        "smem_bytes": resources.smem_bytes if resources else None,
        "blocks_per_sm": resources.blocks_per_sm if resources else None,
        "spill_bytes": trial.spill_bytes,
        "guideline_broken": trial.guideline_broken,
        "verdict_correct": int(verdict.correct) if verdict else None,
        "verdict_worst_ratio": verdict.worst_ratio if verdict else None,
        "verdict_detail": verdict.detail[:MOST_DETAIL] if verdict else None,
        "full_verdict": trial.full_verdict,
        "verified_code": trial.verified_code,
        "floor_us": trial.floor_us,
        "compile_seconds": trial.compile_seconds,
        "total_seconds": trial.total_seconds,
        "compile_limit_seconds": trial.limits.compile_seconds if trial.limits else None,
        "run_limit_seconds": trial.limits.run_seconds if trial.limits else None,
        "cache": trial.cache.value,
        "is_between": int(trial.is_between),
        "superseded": 0,
        "strategy": trial.strategy,
        "space_configurations": trial.space_configurations,
        "search_ended": None,
        "ended_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
