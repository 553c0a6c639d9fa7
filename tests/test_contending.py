"""Kernels that are expected to be nearly the fastest: where they are measured, and what a module knows of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from io import StringIO
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from tests.call_log import logged
from tests.command import completed
from tests.fabricated import imported, measurement, plain_sql, tuning_run
from tests.simulated import DEVICE, RUN, Simulated, stored_trial
from tests.times_between import (
    H200,
    OTHER,
    SHAPES,
    SLOWER_AT_TUNED,
    THIRD,
    WINNER,
    Everything,
    Slower,
    crossed,
    measured,
    measured_between,
    predict,
    shape,
    tuned,
)
from tsm2_tune.console.run_progress import RunProgress
from tsm2_tune.console.trial_tables import trial_facts
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.families import parse_config
from tsm2_tune.generator.families.resident_b import ResidentBFmaConfig
from tsm2_tune.generator.families.stream_a import StreamAFmaConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.intermediate_shapes import shapes_between
from tsm2_tune.generator.space.space import SearchSpace
from tsm2_tune.tuner.export.kernel_sets.near_winners import NEARLY, Contender, contending
from tsm2_tune.tuner.export.measured_times import times_elsewhere, vendor_elsewhere
from tsm2_tune.tuner.measure import cross_timing
from tsm2_tune.tuner.measure.cross_timing import CrossTiming
from tsm2_tune.tuner.results.best_view import BestRow
from tsm2_tune.tuner.results.records import TrialRecord
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Cache, Outcome
from tsm2_tune.tuner.runs.events import PairMeasured, PairsStarted, RunStarted, TrialStored
from tsm2_tune.tuner.runs.problem_queue import tune_problems
from tsm2_tune.tuner.search.session import candidate_of
from tsm2_tune.tuner.search.strategies import exhaustive

pytestmark = pytest.mark.slow


def contenders(store: Store, winners: Sequence[BestRow], without: Any = None) -> Iterator[tuple[str, Problem]]:
    for one in contending(store, winners, lambda one: one.config.kernel_text != getattr(without, "kernel_text", "")):
        yield one.config.kernel_text, one.at


def timing(device: Simulated, store: Store) -> Iterator[Any]:
    return CrossTiming(frozenset(SHAPES), device, store, families=("stream_a_fma",)).events()


def tried_at(device: Simulated, config: KernelConfig) -> list[Problem]:
    """Return where the configuration's kernel was tried."""
    tried = [(parse_config(text), problem) for text, problem in device.tried]
    return [problem for one, problem in tried if one is not None and one.kernel_text == config.kernel_text]


def test_kernel_predicted_near_the_winner_contends(store: Store) -> None:
    winners = tuned(store)
    assert {text for text, _ in contenders(store, winners)} == {WINNER.kernel_text}  # it won everywhere
    measured(store, {n: us for n, us in SLOWER_AT_TUNED.items() if n != 16}, full_verdict="right")
    found = set(contenders(store, winners))
    assert (OTHER.kernel_text, shape(20480, 16, 20480)) in found
    assert {problem for text, problem in found if text == OTHER.kernel_text} > set(shapes_between(SHAPES))
    assert OTHER.kernel_text not in {text for text, _ in contenders(store, winners, without=OTHER)}
    measured(store, {n: 2 * us for n, us in SLOWER_AT_TUNED.items()}, THIRD, full_verdict="right")
    assert THIRD.kernel_text not in {text for text, _ in contenders(store, winners)}


def test_of_many_near_kernels_the_fastest_contend(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    ones = [StreamAFmaConfig(128, 1, columns, 8, 4, 13, 1, 1) for columns in (1, 2, 3, 4, 6, 8, 12)]
    for config, problem in product(ones, SHAPES):
        us = 100.0 if config == ones[SHAPES.index(problem)] else 200.0
        store.add_trial(RUN, stored_trial(config, problem, us, full_verdict="right"))
    winners = store.best()
    at = [1 + place / 100 for place in range(len({row.config for row in winners}))]

    def times(kernels: Sequence[Any], problems: Sequence[Problem], card: Any) -> Any:
        us = np.array([[least_us * at[place]] * len(problems) for place in range(len(kernels))])
        return us, np.full_like(us, 132)

    least_us = 50.0
    predict(monkeypatch, "near_winners", times)
    monkeypatch.setattr("tsm2_tune.tuner.export.kernel_sets.near_winners.MOST_CONTENDING", 3)
    found = list(contenders(store, winners))
    assert {sum(problem == one for _, problem in found) for one in [*SHAPES, *shapes_between(SHAPES)]} == {3}
    least_us = 98.5 * NEARLY  # of the winner's 100 us at tuned shapes
    found = list(contenders(store, winners))
    assert {sum(problem == one for _, problem in found) for one in SHAPES} == {2}
    assert {sum(problem == one for _, problem in found) for one in shapes_between(SHAPES)} == {3}


@pytest.fixture
def nothing_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernel is tried for shapes between since it is a first choice there."""
    monkeypatch.setattr(cross_timing, "kernels_between", lambda *_: {})


@pytest.mark.usefixtures("nothing_planned")
def test_a_kernel_is_measured_wherever_it_contends_once(store: Store) -> None:
    tuned(store)
    missing = shape(20480, 16, 20480)
    measured(store, {n: us for n, us in SLOWER_AT_TUNED.items() if n != missing.n}, full_verdict="right")
    assert tried_at(crossed(store), OTHER).count(missing) == 1
    again = Simulated(store, Everything())
    assert (list(timing(again, store)), again.tried) == ([], [])


@pytest.mark.usefixtures("nothing_planned")
@pytest.mark.parametrize(("expected", "is_tried"), [(0.89, True), (0.91, False)])
def test_launch_of_contender(store: Store, monkeypatch: pytest.MonkeyPatch, expected: float, is_tried: bool) -> None:
    tuned(store)
    measured(store, SLOWER_AT_TUNED, full_verdict="right")
    at = shape(20480, 16, 20480)
    blocks = 40 * 3 * 48  # of 512 rows and 6 columns, in 48 parts of k: at the shapes that it won it has 13
    one = Contender(OTHER, SHAPES[0], at, expected * SLOWER_AT_TUNED[16], blocks)
    monkeypatch.setattr(cross_timing, "contending", lambda store, winners, fits: filter(fits, [one]))
    tried = [text for text, problem in crossed(store).tried if problem == at and "columns=6," in text]
    assert tried == [replace(OTHER, splits=48).text] * is_tried


BETWEEN = shapes_between(SHAPES)


def test_contenders_between_tuned_shapes_are_measured_beside_the_vendor(store: Store) -> None:
    tuned(store)
    text, counted, device = StringIO(), list[tuple[int, int]](), Simulated(store, Everything(), vendor=True)
    with RunProgress(Console(file=text, width=200)) as shown:
        shown.show(RunStarted(device.target, tuple(SHAPES), device.options, device.phases))
        shown.show(PairsStarted())
        for event in timing(device, store):
            shown.show(event)
            counted += [(event.done, event.total)] if isinstance(event, PairMeasured) else []
    assert counted == sorted(counted)
    assert counted[-1] == (len(device.tried), len(device.tried))
    assert {problem for _, problem in device.tried} >= set(BETWEEN)
    between = sum(problem in BETWEEN for _, problem in device.tried)
    stored = [trial_facts(store.trial(line.id)) for line in store.listing()]
    assert sum(facts["is_intermediate_shape"] for facts in stored) == between > 0
    measured = f"{len(device.tried)} measured ({between} at shapes between the tuned ones)"
    assert f"cross-checked kernels at shapes that they did not win: {measured}" in text.getvalue()
    assert sorted(problem for problem, _ in device.rounds if problem in BETWEEN) == sorted(BETWEEN)  # once
    assert {problem for _, problem in device.in_full}.isdisjoint(BETWEEN)
    assert {row.problem for row in store.best()} == set(SHAPES)
    there = store.best(between=True)
    assert {row.problem for row in there} == set(BETWEEN)
    assert {row.vendor_us for row in there} == {101.0}


class NearlyTied(dict[tuple[str, Problem], float]):
    """The winner's kernel takes 1, one of 6 columns nearly that, others half as much more."""

    def get(self, key: tuple[str, Problem], default: Any = None) -> float:
        return self[key]

    def __missing__(self, key: tuple[str, Problem]) -> float:
        text, problem = key
        factor = 1.0 if text == WINNER.text else 1.02 if "columns=6," in text else 1.5
        return factor * 380.0 * max(problem.n // 2, 1)


def test_a_later_kernel_that_nearly_ties_between_has_a_final(store: Store) -> None:
    tuned(store)
    assert {problem for problem, _ in crossed(store, NearlyTied(), vendor=True).rounds} >= set(BETWEEN)
    later = replace(OTHER, threads=64)
    measured(store, {n: 1.001 * 380.0 * max(n // 2, 1) for n in (2, 4, 8, 16, 32)}, later, full_verdict="right")
    second = crossed(store, NearlyTied(), vendor=True)
    tried = {problem for _, problem in second.tried if problem in BETWEEN}
    assert tried
    assert {problem for problem, _ in second.rounds if problem in BETWEEN} >= tried
    assert crossed(store, NearlyTied(), vendor=True).tried == []


def test_each_type_has_contenders_and_finals_between(store: Store) -> None:
    tuned(store)
    others = [replace(problem, dtype_name="f64") for problem in SHAPES]
    for problem, us in zip(others, (380.0, 760.0, 1520.0, 3040.0, 6080.0), strict=True):
        store.add_trial(RUN, stored_trial(WINNER, problem, us, full_verdict="right"))
    at = {problem for problem, _ in crossed(store, shapes=[*SHAPES, *others], vendor=True).rounds}
    assert at >= {*BETWEEN, *shapes_between(others)}


def searched(store: Store, problem: Problem) -> None:
    configs = (StreamAFmaConfig(128, 1, *of, 1, 1) for of in product((1, 2, 3, 4), (8,), (4,), (6, 9, 13)))
    candidates = [candidate_of(one, problem, H200) for one in configs]
    space = SearchSpace(problem, H200, ("stream_a_fma",), candidates, (), ())
    list(tune_problems([space], Simulated(store, Everything(), cache=Cache.CLEAN), store, make_strategy=exhaustive))


def test_a_shape_between_that_is_tuned_later_has_a_winner_in_its_l2_state(store: Store) -> None:
    measured_between(store)
    later, other = BETWEEN[:2]
    searched(store, later)
    assert {row.problem for row in store.best()} - set(SHAPES) == {later}
    assert {row.problem for row in store.best(between=True)} == {*BETWEEN} - {later}
    assert all(row.verified_in_full for row in store.best(problem=later))
    other_gpu = tuning_run("another GPU")
    for problem in (later, other):
        store.add_trial(other_gpu, stored_trial(WINNER, problem, 100.0, is_between=True))
    searched(store, other)
    assert {row.problem for row in store.best(device="another GPU", between=True)} == {later, other}
    later = BETWEEN[2]  # tuned in another state of the L2, and between in this
    dirty = {"cache": Cache.DIRTY, "measurement": replace(measurement(100.0, 0.1), cache=Cache.DIRTY)}
    store.add_trial(RUN, stored_trial(WINNER, later, 100.0, basis="dirty", full_verdict="right", **dirty))
    store.count_as_tuned(DEVICE, later, Cache.DIRTY)
    (row,) = store.best(problem=later)
    assert (row.cache, row.verified_in_full) == ("dirty", 1)
    assert later in {row.problem for row in store.best(between=True, cache=Cache.CLEAN)}


@pytest.mark.parametrize("us", [None, 1000.0])
def test_a_tuned_shape_without_a_winner_of_now_is_none_between(store: Store, us: float | None) -> None:
    store.add_trial(RUN, stored_trial(THIRD, BETWEEN[0], us, basis="old nvcc", full_verdict="right"))
    before = store.best(problem=BETWEEN[0])
    device = measured_between(store)
    assert BETWEEN[0] not in {problem for _, problem in device.tried}
    assert {problem for _, problem in device.tried} >= set(BETWEEN[1:])
    assert [row.config for row in store.best(problem=BETWEEN[0])] == [row.config for row in before]


@pytest.mark.parametrize("vendor", [False, True])
def test_what_a_killed_run_leaves_between_is_ended_by_the_next(store: Store, vendor: bool) -> None:
    tuned(store)
    if vendor:  # killed between a trial and the finals
        events: Any = timing(Simulated(store, Everything(), vendor=True), store)
        next(one for one in events if isinstance(one, TrialStored) and one.trial.is_between)
        events.close()
    else:  # or without the vendor
        crossed(store)
    crossed(store, vendor=True)
    assert {row.vendor_us for row in store.best(between=True)} == {101.0}
    assert all(row.round > 0 for row in store.best(between=True))


def test_what_alone_contends_is_tried(store: Store) -> None:
    tuned(store)
    device = crossed(store, Slower(), vendor=True)
    between = [one for one in store.current(DEVICE) if one.is_between]
    store.forget([between[0].id], [], lambda _: None)
    again = crossed(store, Slower(), vendor=True)
    assert (between[0].config.text, between[0].problem) in again.tried
    assert len(again.tried) <= len(device.tried) / 4  # without it others are expected otherwise


def test_winners_and_trials_are_found_by_type_and_op(store: Store) -> None:
    tuned(store)
    for other in (replace(SHAPES[0], op="nnt"), replace(SHAPES[0], dtype_name="f64")):
        store.add_trial(RUN, stored_trial(WINNER, other, 100.0, full_verdict="right"))
    for found in (store.best(alike=SHAPES[0]), store.current(DEVICE, alike=SHAPES[0])):
        assert {one.problem for one in found} == set(SHAPES)
    assert store.searched(DEVICE, Cache.CLEAN, SHAPES[0]) == set(SHAPES)
    assert store.searched(DEVICE, Cache.WARM, SHAPES[0]) == set()
    assert store.searched("another GPU", Cache.CLEAN, SHAPES[0]) == set()


def test_a_kernel_that_won_nothing_is_measured_between_too(store: Store) -> None:
    tuned(store)
    measured(store, SLOWER_AT_TUNED, full_verdict="right")
    assert set(tried_at(crossed(store, Slower(), SHAPES[:1]), OTHER)) == set(BETWEEN)


def test_what_fails_is_tried_once_in_a_run(store: Store) -> None:
    tuned(store)
    measured(store, SLOWER_AT_TUNED, full_verdict="right")
    times: dict[Any, float] = {(WINNER.text, problem): 380.0 * max(problem.n // 2, 1) for problem in SHAPES}
    times |= {(OTHER.text, shape(20480, n, 20480)): us for n, us in SLOWER_AT_TUNED.items()}
    tried = crossed(store, times, retried=frozenset({Outcome.CRASHED})).tried  # all else crashes
    assert len(tried) == len({*tried}) > 0


def test_what_another_run_has_in_hand_is_not_waited_for(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Simulated, "tune", lambda *_: iter(()))  # every candidate is left to other runs
    tuned(store)
    measured(store, {n: us for n, us in SLOWER_AT_TUNED.items() if n != 16}, full_verdict="right")
    device = Simulated(store, Everything())
    assert any(isinstance(one, PairMeasured) and one.total for one in timing(device, store))
    assert device.tried == []
    winners, seen = store.best(problem=SHAPES[0]), list[Any]()  # the kernel that has a time contends, too
    monkeypatch.setattr(cross_timing, "contending", lambda _, of, fits: logged(seen, fits, ()))
    crossed(store)
    at = winners[0].problem
    assert seen[0](Contender(WINNER, at, at, 1e9, 132.0))
    assert not seen[0](Contender(ResidentBFmaConfig(128, 8, 1, 8, 8, 4), at, BETWEEN[0], 1e9, 132.0))  # not asked for


def test_a_module_knows_right_times_of_the_vendor(store: Store, path: Path, tmp_path: Path) -> None:
    measured_between(store)
    winners = {row.trial_id: store.trial(row.trial_id) for row in store.best()}

    def of_vendor(trials: Mapping[int, TrialRecord] = winners) -> Any:
        return vendor_elsewhere(store, trials, of_gemm=True)

    known = of_vendor()
    points = [(point, number) for number, of in known.items() for point in of]
    assert sorted(point[:3] for point, _ in points) == sorted((one.m, one.n, one.k) for one in BETWEEN)
    assert {us for (*_, us), _ in points} == {101.0}
    for (m, n, k, _, _), number in points:
        own = {one: math.dist(logs(shape(m, n, k)), logs(record.trial.problem)) for one, record in winners.items()}
        assert own[number] == min(own.values())
    of_kernels = times_elsewhere(store, winners).values()
    assert {point[:3] for of in of_kernels for point in of} >= {(p.m, p.n, p.k) for p in BETWEEN}
    warm = {one: replace(record, trial=replace(record.trial, cache=Cache.WARM)) for one, record in winners.items()}
    assert of_vendor(warm) == {}

    output, at = tmp_path / "kernels.py", BETWEEN[0]
    completed("export", "--db", str(store.path), "--format", "module", "--no-binaries", "--output", str(output))
    found = imported(output.read_text(), tmp_path).match(at.m, at.n, at.k, "float32", DEVICE)
    assert found.vendor_us == pytest.approx(101.0, rel=0.02)
    assert not found.is_tuned

    plain_sql(path, "UPDATE vendor_measurement SET library = 'cuBLASLt', routine = 'cublasLtMatmul #1'")
    assert {row.vendor_us for row in store.best(between=True)} == {101.0}
    assert of_vendor() == {}
    plain_sql(path, "UPDATE vendor_measurement SET library = 'cuBLAS', routine = 'cublasSgemm'")
    assert of_vendor() == known
    plain_sql(path, "UPDATE vendor_measurement SET verdict_correct = 0, verdict_worst_ratio = 2.0")
    assert of_vendor() == {}


def logs(problem: Problem) -> tuple[float, ...]:
    return tuple(map(math.log, (problem.m, problem.n, problem.k)))
