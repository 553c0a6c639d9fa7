"""Tests of an exported module's knowledge of the vendor's times between tuned shapes."""
# fixtures of another file

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.fabricated import imported, plain_sql
from tests.simulated import DEVICE
from tests.times_between import SHAPES, measured_between, shape
from tsm2_tune.cli import main
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.intermediate_shapes import shapes_between
from tsm2_tune.tuner.export.measured_times import known_of
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Cache

BETWEEN = shapes_between(SHAPES)


def test_the_vendors_wrong_answers_and_other_states_tell_nothing(store: Store, path: Path) -> None:
    measured_between(store)
    winners = {row.trial_id: store.trial(row.trial_id) for row in store.best()}
    points = {(point, number) for number, of in known_of(store, winners).vendor.items() for point in of}
    for (m, n, k, _), number in points:
        own = {one: math.dist(logs(shape(m, n, k)), logs(record.trial.problem)) for one, record in winners.items()}
        assert own[number] == min(own.values())
    plain_sql(path, "UPDATE vendor_measurement SET verdict_correct = 0, verdict_worst_ratio = 2.0")
    assert known_of(store, winners).vendor == {}
    warm = {one: replace(record, trial=replace(record.trial, cache=Cache.WARM)) for one, record in winners.items()}
    assert known_of(store, warm).vendor == {}


def logs(problem: Problem) -> tuple[float, ...]:
    return tuple(map(math.log, (problem.m, problem.n, problem.k)))


def test_of_the_vendor_between_a_module_is_given_what_libraries_start(store: Store, path: Path) -> None:
    measured_between(store)
    winners = {row.trial_id: store.trial(row.trial_id) for row in store.best()}
    before = known_of(store, winners).vendor
    assert {us for of in before.values() for *_, us in of} == {101.0}
    plain_sql(path, "UPDATE vendor_measurement SET library = 'cuBLASLt', routine = 'cublasLtMatmul #1'")
    assert {row.vendor_us for row in store.best(between=True)} == {101.0}
    assert known_of(store, winners).vendor == {}


def test_an_exported_module_expects_the_vendor_by_its_times_between_too(store: Store, tmp_path: Path) -> None:
    measured_between(store)
    output = tmp_path / "kernels.py"
    command = ["export", "--db", str(store.path), "--format", "module", "--no-binaries", "--output", str(output)]
    assert CliRunner().invoke(main, command).exit_code == 0
    module = imported(output.read_text(), tmp_path)
    at = BETWEEN[0]
    found = module.match(at.m, at.n, at.k, "float32", DEVICE)
    assert found.vendor_us == pytest.approx(101.0, rel=0.02)
    assert not found.is_tuned
