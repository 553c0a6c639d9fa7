"""Tests of what a search knows before its first trial of other problems in the database."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.fabricated import GPU, trial, tuning_run
from tests.simulated import TARGET, Simulated
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.families.published import Tsm2Config
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.generator.space.order import first_and_rest, ordered
from tsm2_tune.generator.space.space import search_space
from tsm2_tune.tuner.packs.candidate_times import candidate_times_us
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Outcome
from tsm2_tune.tuner.runs.problem_queue import tune_problems
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.stored_seeds import MOST_KERNELS, stored_seeds

H200 = PROFILES["h200"]
HERE = Problem(20480, 16, 20480, "f32")
NEAR, FAR = Problem(20480, 16, 10240, "f32"), Problem(20480, 2, 64, "f32")
OTHER = "NVIDIA A100-SXM4-80GB"


def add(store: Store, problem: Problem, config: KernelConfig, us: float, device: str = GPU, **changes: Any) -> None:
    run = tuning_run(device, compute_capability="9.0" if device == GPU else "8.0", sms=132)
    store.add_trial(run, trial(us, config, problem=problem, source=render(problem, config), **changes))


def kernel(threads: int, columns: int = 8) -> Tsm2Config:
    return Tsm2Config("v2", threads, columns, 4)


def known(store: Store) -> list[tuple[str, str, list[float]]]:
    found = stored_seeds(store, HERE, H200, GPU)
    return [(one.limits.name, one.problem.text, [choice.us for choice in one.choices]) for one in found]


def test_the_fastest_of_each_problem_are_known_this_devices_first(store: Store) -> None:
    for number, threads in enumerate((64, 128, 256, 512)):
        add(store, NEAR, kernel(threads), 400.0 - number)
    add(store, NEAR, kernel(1024), 1.0, outcome=Outcome.WRONG_RESULT, verdict=None, measurement=None)
    add(store, NEAR, kernel(128), 90.0, device=OTHER)
    add(store, FAR, kernel(128), 50.0)
    add(store, replace(NEAR, dtype_name="f64"), kernel(128), 800.0)
    add(store, replace(NEAR, op="tt"), kernel(128), 300.0)
    assert MOST_KERNELS == 3
    found = known(store)
    assert sorted(found[:2]) == sorted([("h200", NEAR.text, [397.0, 398.0, 399.0]), ("h200", FAR.text, [50.0])])
    assert found[2:] == [(OTHER, NEAR.text, [90.0])]
    other = stored_seeds(store, HERE, H200, GPU)[-1].limits
    assert (other.compute_capability, other.sms, other.dram_gbytes_per_s) == ((8, 0), 132, 4000.0)


def test_an_empty_database_knows_nothing(store: Store) -> None:
    assert known(store) == []


def test_what_was_fast_nearby_is_tried_first(store: Store) -> None:
    """Though neither the package nor the model would have it so."""
    space = search_space(HERE, H200, families=["resident_b_fma"])
    config = ordered(space, 0, candidate_times_us)[200].config
    add(store, NEAR, config, 10.0)
    first, others = first_and_rest(space, 0, candidate_times_us, stored_seeds(store, HERE, H200, GPU))
    assert first[0].config == config
    assert len(first) + len(others) == len(space.kept)
    assert config not in [one.config for one in first_and_rest(space, 0, candidate_times_us, ())[0]]


def test_a_run_begins_with_what_won_nearby(store: Store) -> None:
    """By the default strategy, of a problem that was never tried."""
    space = search_space(HERE, TARGET.limits, families=["resident_b_fma"])
    winner, slower = (ordered(space, 0, candidate_times_us)[place].config for place in (200, 300))
    add(store, NEAR, slower, 11.0)
    add(store, NEAR, winner, 10.0)
    add(store, replace(NEAR, dtype_name="f64"), ordered(space, 0, candidate_times_us)[250].config, 1.0)
    device = Simulated(store, {})
    device.options = Options(max_trials=2)
    list(tune_problems([space], device, store))
    assert device.tried == [(winner.text, HERE), (slower.text, HERE)]


@pytest.mark.parametrize("column", ["config", "problem_id"])
def test_trials_of_another_version_are_passed_over(store: Store, path: Any, column: str) -> None:
    from tests.fabricated import plain_sql

    add(store, NEAR, kernel(128), 10.0)
    if column == "config":
        plain_sql(path, "UPDATE trial SET config = 'tsm2:of=another,version=1'")
    else:
        plain_sql(path, "UPDATE trial SET is_between = 1")
    assert known(store) == []
