"""Measured times of kernels and of cuBLAS, from which an exported module predicts times at other shapes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from tsm2_tune.generator.families import FAMILIES
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.export.scale_launch import distance
from tsm2_tune.tuner.results.records import TrialRecord, is_of_this_version
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Trial
from tsm2_tune.tuner.results.trial_summaries import CurrentTrial

MOST_ELSEWHERE = 24  # maximum number of other shapes per kernel, the nearest ones

Elsewhere = tuple[tuple[int, int, int, int, int, int, float], ...]  # m, n, k, products, rows per block, splits, us
VendorElsewhere = tuple[tuple[int, int, int, int, float], ...]  # m, n, k, products, microseconds


def times_elsewhere(store: Store, winners: Mapping[int, TrialRecord]) -> dict[int, Elsewhere]:
    """Return the times of each winner's kernel at the nearest other shapes, by the winner's trial id."""
    return {trial_id: tuple(sorted(map(_point, trials))) for trial_id, trials in trials_elsewhere(store, winners)}


def trials_elsewhere(
    store: Store, winners: Mapping[int, TrialRecord]
) -> Iterator[tuple[int, Sequence[CurrentTrial]]]:
    """Yield each winner's trial id with the trials of the winner's kernel at the nearest other shapes.

    If the kernel was tried with several launches at a shape, only the fastest launch's trial is included.
    """
    for (device, *_), alike in _alike(winners).items():
        fastest = dict[tuple[str, str], dict[Problem, CurrentTrial]]()
        for one in store.current(device, alike=next(iter(alike.values())).problem):
            if one.median_us is not None and is_of_this_version(one.config, one.problem):
                at = fastest.setdefault((one.source_digest, one.cache), {})
                at[one.problem] = min(at.get(one.problem, one), one, key=rank)
        for trial_id, trial in alike.items():
            at = fastest.get((trial.source.digest, trial.cache), {})
            others = [one for problem, one in at.items() if problem != trial.problem]
            others.sort(key=lambda one, own=trial.problem: (distance(one.problem, own), one.problem))  # type: ignore[misc]
            yield trial_id, others[:MOST_ELSEWHERE]


def rank(trial: CurrentTrial) -> tuple[float, str]:
    """Return a unique sort key of trials with a time: the time, then the text of the configuration."""
    return trial.median_us or math.inf, trial.config.text


def _alike(winners: Mapping[int, TrialRecord]) -> dict[tuple[str, str, str, bool], dict[int, Trial]]:
    """Return the winners' trials, grouped: (device, element type, op, whether batched) -> trial id -> trial."""
    found: dict[tuple[str, str, str, bool], dict[int, Trial]] = {}
    for trial_id, record in winners.items():
        problem = record.trial.problem
        kind = (record.run.identity.name, problem.dtype_name, problem.op, problem.is_batched)
        found.setdefault(kind, {})[trial_id] = record.trial
    return found


def vendor_elsewhere(
    store: Store, winners: Mapping[int, TrialRecord], *, of_gemm: bool
) -> dict[int, VendorElsewhere]:
    """Return the vendor's times at all measured shapes but the winners' own. The key is the id of the nearest winner.

    These are shapes between tuned shapes, and tuned shapes whose winners are not among these. With `of_gemm`, the
    times are those of cuBLAS's GEMM. Without it, they are those of the faster library, cuBLAS or cuBLASLt. Times of
    wrong results are excluded.
    """
    found: dict[int, list[tuple[int, int, int, int, float]]] = {}
    for (device, *_), alike in _alike(winners).items():
        for cache in sorted({trial.cache for trial in alike.values()}):
            places = {trial_id: trial.problem for trial_id, trial in alike.items() if trial.cache is cache}
            kind = next(iter(places.values()))
            known = {(device, problem) for problem in places.values()}
            tuned, between = (
                store.best(device=device, cache=cache, alike=kind, between=one, omit=known) for one in (False, True)
            )
            for row in (*tuned, *between):
                p = row.problem
                us, is_right = (row.cublas_us, row.cublas_right) if of_gemm else (row.vendor_us, row.vendor_right)
                if us is not None and is_right:
                    nearest = min(places, key=lambda one, p=p, at=places: (distance(p, at[one]), one))  # type: ignore[misc]
                    found.setdefault(nearest, []).append((p.m, p.n, p.k, p.batch, us))
    return {trial_id: tuple(sorted(times)) for trial_id, times in found.items()}


def _point(trial: CurrentTrial) -> tuple[int, int, int, int, int, int, float]:
    p, launch = trial.problem, FAMILIES[trial.config.family].launch(trial.config, trial.problem)
    return p.m, p.n, p.k, p.batch, launch.rows_per_block, launch.splits, trial.median_us or 0.0
