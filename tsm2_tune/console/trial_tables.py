"""Print a table of trials (attempts to verify and time one kernel), and one trial in full."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tsm2_tune.console.printable import fields, one_line, print_json
from tsm2_tune.console.tables import print_hanging, print_line, print_table
from tsm2_tune.console.winner_columns import layout_text, product_text, spread_percent
from tsm2_tune.tuner.export.tables import facts_of
from tsm2_tune.tuner.results.trial import count_text

if TYPE_CHECKING:
    from rich.console import Console

    from tsm2_tune.tuner.results.records import TrialRecord
    from tsm2_tune.tuner.results.trial import Measurement, Trial, Verdict
    from tsm2_tune.tuner.results.trial_summaries import TrialLine


def trials_table(rows: Iterable[TrialLine], console: Console, *, as_json: bool) -> None:
    """Print a table with one row for each trial, or a JSON list."""
    if as_json:
        print_json([facts_of(row) for row in rows])
        return
    columns: dict[str, Callable[[TrialLine], str]] = {
        "trial": lambda row: str(row.id),
        "device": lambda row: row.device,
        "problem": lambda row: row.problem,
        "configuration": lambda row: row.config,
        "outcome": lambda row: row.outcome,
        "L2": lambda row: row.cache,
        "us": lambda row: "" if row.median_us is None else f"{row.median_us:.1f}",
        "detail": lambda row: one_line(row.detail, 60),
    }
    print_table(console, columns, rows)


def trial_facts(record: TrialRecord) -> dict[str, Any]:
    """Return a dictionary for JSON with everything that is stored about a trial."""
    trial, run = record.trial, record.run
    return {
        "trial": record.id,
        "problem": trial.problem.text,
        "family": trial.config.family,
        "configuration": trial.config.text,
        "tunables": trial.config.tunables,
        **fields(trial, "outcome detail"),
        **fields(record, "current unchanged ended_at"),
        "resources": asdict(trial.resources) if trial.resources else None,
        **fields(trial, "spill_bytes guideline_broken"),
        "verdict": _verdict_facts(trial.verdict),
        "l2_state": trial.cache,
        "is_intermediate_shape": trial.is_between,
        **fields(trial, "strategy floor_us compile_seconds total_seconds"),
        "limits": asdict(trial.limits) if trial.limits else None,
        "measurements": [{"round": number, **facts_of(measured)} for number, measured in record.rounds],
        "run": asdict(run),
        "launch": trial.source.launch.as_rendered,
        "source_digest": trial.source.digest,
        "source": trial.source.text,
    }


def _verdict_facts(verdict: Verdict | None) -> dict[str, Any] | None:
    """Return the verdict as a dictionary for JSON. An infinite error ratio becomes None."""
    if verdict is None:
        return None
    return {**asdict(verdict), "worst_ratio": verdict.worst_ratio if math.isfinite(verdict.worst_ratio) else None}


def trial_in_full(
    record: TrialRecord, console: Console, *, as_json: bool, has_samples: bool = False, has_source: bool = False
) -> None:
    """Print a trial in ten lines, or as JSON, with its measured times and its CUDA source if asked for."""
    if as_json:
        print_json(trial_facts(record))
        return
    for name, value in _summary(record):
        print_hanging(console, f"{f'{name}:':<15}{value}", 15)
    for number, measured in record.rounds if has_samples else ():
        samples = ", ".join(f"{one:.6g}" for one in measured.samples_us)
        print_line(console, f"\nround {number}, L2 {measured.cache}, us: {samples or 'not kept'}")
    if has_source:
        print_line(console, f"\n{record.trial.source.text}")


def _summary(record: TrialRecord) -> Iterator[tuple[str, str]]:
    trial, run, is_gpu = record.trial, record.run, bool(record.run.identity.compute_capability)
    state = "current" if record.current else "superseded"
    changed = "" if record.unchanged else "; this version generates other code"
    strategy = f"search by {trial.strategy}" if trial.strategy else "no search"
    yield "trial", f"{record.id}, {strategy}, ended {record.ended_at}, {state}{changed}"
    yield "problem", f"{trial.problem.text}, {product_text(trial.problem.op)}, {layout_text(trial.problem.op)}"
    yield "configuration", trial.config.text
    yield "device", run.identity.name + (f", L2 {trial.cache}" if is_gpu else "")
    yield "outcome", f"{trial.outcome}: {one_line(trial.detail)}" if trial.detail else trial.outcome
    yield "time", "; ".join(map(_time_text, record.rounds)) or "none"
    yield "floor", _floor_text(trial, record.rounds)
    worst = "" if trial.verdict is None else f", worst error {trial.verdict.worst_ratio:.3g} of its bound"
    yield "verified", "in full" + worst if trial.full_verdict else f"in part{worst}" if trial.verdict else "no"
    yield "kernel", _kernel_text(trial) if is_gpu else "emulated on the host"
    yield "tools", f"{run.identity.toolkit}, {run.identity.driver}, tsm2-tune {run.version}"


def _time_text(measured_in: tuple[int, Measurement]) -> str:
    number, one = measured_in
    return f"{one.median_us:.6g} us +- {spread_percent(one):.1f} % {one.cache} in round {number}"


def _floor_text(trial: Trial, rounds: Sequence[tuple[int, Measurement]]) -> str:
    own = [one.median_us for _, one in rounds if one.cache is trial.cache]
    share = f", {100 * trial.floor_us / own[-1]:.0f} % of it reached" if own else ""
    return f"{trial.floor_us:.4g} us{share}"


def _kernel_text(trial: Trial) -> str:
    if trial.resources is None:
        return "not loaded"
    blocks = trial.resources.blocks_per_sm
    spilled = f", {trial.spill_bytes} bytes spilled" if trial.spill_bytes else ""
    return (
        f"{trial.resources.registers} registers{spilled}, {trial.resources.smem_bytes} bytes of shared memory,"
        f" {count_text(blocks, 'block')} per multiprocessor"
    )
