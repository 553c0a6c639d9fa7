"""Kernels for shapes between the tuned ones: which these are, what is measured, and what a program gets."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from io import StringIO
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

from tests.fabricated import final, host_run, imported, measurement, plain_sql, tuning_run
from tests.simulated import DEVICE, RUN, TARGET, Simulated, stored_trial
from tsm2_tune.cli import main
from tsm2_tune.crossed import cross
from tsm2_tune.errors import StoreError
from tsm2_tune.generator.between import APART, KERNELS_OF_A_SHAPE, kernels_between, shapes_between
from tsm2_tune.generator.families import FAMILIES, config_spelt, family_named
from tsm2_tune.generator.families.tsmr import TsmrConfig
from tsm2_tune.generator.order import FAR_BEHIND
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.profiles import PROFILES
from tsm2_tune.generator.space import SearchSpace
from tsm2_tune.runtime.expecting import CACHED_RATE
from tsm2_tune.tuner import job
from tsm2_tune.tuner.basis import basis
from tsm2_tune.tuner.crossing import MOST_BETWEEN, Crossed, Crossing
from tsm2_tune.tuner.export.between import MEASURED, _gaining, rows_between, with_between
from tsm2_tune.tuner.export.contending import contending
from tsm2_tune.tuner.export.known import known_of
from tsm2_tune.tuner.export.rates import fitted
from tsm2_tune.tuner.store import Store
from tsm2_tune.tuner.stored import BestRow
from tsm2_tune.tuner.suggested import candidate_of
from tsm2_tune.tuner.trial import Cache, Outcome
from tsm2_tune.tuner.tune import Options

H200 = PROFILES["h200"]


def shape(m: int, n: int, k: int, dtype: str = "f32", op: str = "nn") -> Problem:
    return Problem(m, n, k, dtype, op)


# Shapes between


def test_between_two_shapes_there_is_their_mean() -> None:
    assert shapes_between([shape(4096, 4, 1024), shape(1024, 16, 4096)]) == [shape(2048, 8, 2048)]


def test_a_third_shape_that_is_between_two_parts_them() -> None:
    ends, middle = (shape(1000, 1, 1000), shape(1000, 64, 1000)), shape(1000, 8, 1000)
    assert shapes_between(ends) == [middle]
    assert sorted(shapes_between([*ends, middle])) == [shape(1000, 3, 1000), shape(1000, 23, 1000)]


def test_a_third_shape_beside_the_mean_of_two_parts_them_too() -> None:
    beside = shape(
        2000, 8, 1000
    )  # nearer to the mean of the ends than these are, and not so near that it is the mean
    found = shapes_between([shape(1000, 1, 1000), shape(1000, 64, 1000), beside])
    assert sorted(found) == [shape(1414, 3, 1000), shape(1414, 23, 1000)]


def test_what_rounds_to_a_tuned_shape_is_not_between() -> None:
    tuned = [shape(20480, n, 20480) for n in (1, 2, 4, 8)]
    assert set(shapes_between(tuned)) == {shape(20480, n, 20480) for n in (3, 6)}  # of 1 and 2 the mean is 1
    tiny = shapes_between([shape(1, 1, 1), shape(1, 2, 1), shape(2, 1, 1)])
    assert len(tiny) == len({*tiny})
    assert set(tiny).isdisjoint([shape(1, 1, 1), shape(1, 2, 1), shape(2, 1, 1)])


def test_the_farthest_come_first_and_there_are_no_more_than_tuned_ones() -> None:
    tuned = [shape(m, n, 1000) for m in (1000, 4000, 1_000_000) for n in (1, 8, 64)]
    found = shapes_between(tuned)
    assert len(found) == len(tuned)
    assert len({*found}) == len(found)
    assert found[0].m == 63_246  # between 4,000 and 1,000,000
    assert set(found).isdisjoint(tuned)


def test_shapes_that_lie_side_by_side_have_none_between() -> None:
    near = int(1000 * APART**2 * 0.98)
    assert shapes_between([shape(1000, 8, 1000), shape(near, 8, 1000)]) == []
    assert shapes_between([shape(1000, 8, 1000)]) == []


def test_between_products_of_a_matrix_with_itself_are_such_products() -> None:
    (found,) = shapes_between([shape(4, 4, 1000, op="tx"), shape(64, 64, 1000, op="tx")])
    assert (found.m, found.n, found.op) == (16, 16, "tx")


# Kernels that planning prefers


@pytest.mark.parametrize("op", ["nn", "ttt", "tn"])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_planning_names_kernels_of_searches_for_each_shape(dtype: str, op: str) -> None:
    tuned = [shape(3, 5, 10**6, dtype, op), shape(40, 3, 10**5, dtype, op), shape(64, 64, 10**6, dtype, op)]
    found = kernels_between(tuned, H200)
    of_shape = {one: sum(one in at for at in found.values()) for one in shapes_between(tuned)}
    assert of_shape
    assert set(of_shape.values()) <= {*range(1, KERNELS_OF_A_SHAPE + 1)}
    for text, at in found.items():
        for problem, config in at.items():
            family = family_named(config.family)
            assert config.kernel_text == text
            assert family.supports(problem)
            assert not family.only_by_name


def test_what_is_expected_far_behind_the_first_choice_is_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    tuned = [shape(3, 5, 10**6, op="tn"), shape(40, 3, 10**5, op="tn"), shape(64, 64, 10**6, op="tn")]
    first = kernels_between(tuned, H200)
    times: dict[Problem, int] = {}

    def expected(candidate: Any) -> float:
        times[candidate.problem] = times.get(candidate.problem, 0) + 1
        return (1.01 * FAR_BEHIND) ** times[candidate.problem]  # of each family so many times the one before

    monkeypatch.setattr("tsm2_tune.generator.between.expected_us", expected)
    found = kernels_between(tuned, H200)
    assert sum(len(at) for at in found.values()) == len(shapes_between(tuned))
    assert len(first) > len(found)


# What is measured


class Slower(dict[Any, float]):
    """Whatever is tried takes as long as WINNER, or longer: more, the more columns."""

    def get(self, key: Any, default: Any = None) -> Any:
        return self[key]

    def __missing__(self, key: tuple[str, Problem]) -> float:
        return (1.0 if key[0] == WINNER.text else 1.02) * 380.0 * max(key[1].n // 2, 1)


class Everything(dict[Any, float]):
    """Whatever is tried takes longer than the winner."""

    def get(self, key: Any, default: Any = None) -> Any:
        return self[key]

    def __missing__(self, key: tuple[str, Problem]) -> float:
        return 100.0 if key[0] == WINNER.text else 150.0


TUNED = [shape(20480, n, 4096 * step) for n, step in ((1, 1), (2, 4), (4, 2), (8, 5), (16, 3), (32, 1), (64, 4))]
WINNER = TsmrConfig(128, 1, 2, 8, 4, 13, 1, 1)


@pytest.fixture(autouse=True)
def bases(monkeypatch: pytest.MonkeyPatch) -> None:
    today = {name: basis(name, TARGET, Cache.CLEAN) for name in FAMILIES}
    monkeypatch.setattr("tests.simulated.TODAY", today)


def won(store: Store, config: Any = WINNER, problems: Sequence[Problem] = TUNED, **changes: Any) -> None:
    for problem in problems:
        store.add_trial(RUN, stored_trial(config, problem, 100.0, **({"full_verdict": "right"} | changes)))


def test_kernels_for_shapes_between_are_measured_at_the_nearest_tuned_ones(store: Store) -> None:
    won(store)
    device = Simulated(store, Everything())
    list(Crossing(frozenset(TUNED), device, store).events())
    kernels: dict[str, set[Problem]] = {}
    for one in store.current(DEVICE):
        if one.config.kernel_text != WINNER.kernel_text and not one.is_between:
            kernels.setdefault(one.config.kernel_text, set()).add(one.problem)
    planned = kernels_between(TUNED, H200)
    assert kernels.keys() <= planned.keys()
    assert len(kernels) > len(TUNED) / 2
    assert max(map(len, kernels.values())) == MOST_BETWEEN
    again = Simulated(store, Everything())
    assert list(Crossing(frozenset(TUNED), again, store).events()) == []
    assert again.tried == []


def test_between_too_few_shapes_nothing_is(store: Store) -> None:
    few = TUNED[: MEASURED - 1]
    won(store, problems=few)
    device = Simulated(store, Everything())
    list(Crossing(frozenset(few), device, store).events())
    assert device.tried == []


def test_on_a_host_only_winners_kernels_are(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    won(store)
    device = Simulated(store, Everything())
    monkeypatch.setattr(device.target, "is_host", True)
    list(Crossing(frozenset(TUNED), device, store).events())
    assert device.tried == []


# What a program gets

THIRD = TsmrConfig(128, 1, 4, 8, 4, 13, 1, 1)
OTHER = TsmrConfig(128, 1, 6, 8, 4, 13, 1, 1)  # whose tile of 6 columns suits shapes between those of 4 and 8
SHAPES = [shape(20480, n, 20480) for n in (2, 4, 8, 16, 32)]


def measured(store: Store, us: dict[int, float], config: Any = OTHER, **changes: Any) -> None:
    """What the kernel took, by columns."""
    for n, own_us in us.items():
        store.add_trial(RUN, stored_trial(config, shape(20480, n, 20480), own_us, **changes))


def tuned(store: Store) -> tuple[BestRow, ...]:
    """A kernel of 2 columns that won everywhere: the more passes over A, the longer it took."""
    for problem in SHAPES:
        trial = stored_trial(WINNER, problem, 380.0 * max(problem.n // 2, 1), full_verdict="right")
        store.add_trial(RUN, trial)
        store.add_final(RUN, final((WINNER, 380.0 * max(problem.n // 2, 1)), problem=problem), {"tsmr": trial.basis})
    return store.best()


# At 8, 16 and 32 columns it has two, three and six passes over A: slower than one kernel of as many columns would be.
SLOWER_AT_TUNED = {2: 400.0, 4: 770.0, 8: 1530.0, 16: 3050.0, 32: 6090.0}


def test_a_kernel_that_won_nothing_is_wanted_where_it_is_expected_to_be_faster(store: Store) -> None:
    winners = tuned(store)
    assert rows_between(store, winners) == []
    faster = {2: 390.0, 4: 765.0, 8: 1525.0, 16: 3045.0, 32: 6085.0}
    measured(store, faster, full_verdict="right")
    (row,) = rows_between(store, winners)
    assert row.config == OTHER.text
    assert row.problem.n == 32  # where it is nearest to the winner
    assert row.problem in SHAPES
    assert with_between(store, print, winners) == [*winners, row]


def contenders(store: Store, winners: Sequence[BestRow], without: Any = None) -> Iterator[tuple[str, Problem]]:
    for one in contending(store, winners, lambda one: one.config.kernel_text != getattr(without, "kernel_text", "")):
        yield one.config.kernel_text, one.at


def test_a_kernel_contends_where_it_is_expected_to_be_nearly_as_fast_as_the_winner(store: Store) -> None:
    winners = tuned(store)
    assert {text for text, _ in contenders(store, winners)} == {WINNER.kernel_text}  # it won everywhere
    measured(store, {n: us for n, us in SLOWER_AT_TUNED.items() if n != 16}, full_verdict="right")
    found = set(contenders(store, winners))
    assert (OTHER.kernel_text, shape(20480, 16, 20480)) in found
    assert {problem for text, problem in found if text == OTHER.kernel_text} > set(shapes_between(SHAPES))
    assert OTHER.kernel_text not in {text for text, _ in contenders(store, winners, without=OTHER)}
    measured(store, {n: 2 * us for n, us in SLOWER_AT_TUNED.items()}, THIRD, full_verdict="right")
    assert THIRD.kernel_text not in {text for text, _ in contenders(store, winners)}


def test_of_many_kernels_that_are_nearly_as_fast_the_fastest_contend(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    ones = [TsmrConfig(128, 1, columns, 8, 4, 13, 1, 1) for columns in (1, 2, 3, 4, 6, 8, 12)]
    for config, problem in product(ones, SHAPES):
        us = 100.0 if config == ones[SHAPES.index(problem)] else 200.0
        store.add_trial(RUN, stored_trial(config, problem, us, full_verdict="right"))
    winners = store.best()
    at = [1 + place / 100 for place in range(len({row.config for row in winners}))]

    def times(kernels: Sequence[Any], problems: Sequence[Problem], card: Any) -> Any:
        return np.array([[50.0 * at[place]] * len(problems) for place in range(len(kernels))])

    monkeypatch.setattr("tsm2_tune.tuner.export.contending.expected_us", times)
    monkeypatch.setattr("tsm2_tune.tuner.export.contending.MOST_CONTENDING", 3)
    found = list(contenders(store, winners))
    assert {sum(problem == one for _, problem in found) for one in [*SHAPES, *shapes_between(SHAPES)]} == {3}
    monkeypatch.setattr("tsm2_tune.tuner.export.contending.NEARLY", 0.505)  # of the winner's 100 us at tuned shapes
    found = list(contenders(store, winners))
    assert {sum(problem == one for _, problem in found) for one in SHAPES} == {2}
    assert {sum(problem == one for _, problem in found) for one in shapes_between(SHAPES)} == {0}


def test_a_kernel_is_measured_wherever_it_contends_once(store: Store) -> None:
    tuned(store)
    missing = shape(20480, 16, 20480)
    measured(store, {n: us for n, us in SLOWER_AT_TUNED.items() if n != missing.n}, full_verdict="right")
    device = Simulated(store, Everything())
    events = list(Crossing(frozenset(SHAPES), device, store, families=("tsmr",)).events())
    tried = [(config_spelt(config).kernel_text, problem) for config, problem in device.tried]
    assert tried.count((OTHER.kernel_text, missing)) == 1
    assert events
    again = Simulated(store, Everything())
    assert list(Crossing(frozenset(SHAPES), again, store, families=("tsmr",)).events()) == []
    assert again.tried == []


BETWEEN = shapes_between(SHAPES)


def measured_between(store: Store) -> Simulated:
    """A run after which there are times between the tuned shapes."""
    tuned(store)
    device = Simulated(store, Everything())
    device.options = Options(vendor=True)
    list(Crossing(frozenset(SHAPES), device, store, families=("tsmr",)).events())
    return device


def test_between_tuned_shapes_what_contends_is_measured_beside_the_vendor(store: Store) -> None:
    device = measured_between(store)
    tried = {problem for _, problem in device.tried}
    assert tried >= set(BETWEEN)
    assert {problem for problem, _ in device.rounds} >= set(BETWEEN)
    assert {problem for _, problem in device.in_full}.isdisjoint(BETWEEN)
    assert {row.problem for row in store.best()} == set(SHAPES)
    there = store.best(between=True)
    assert {row.problem for row in there} == set(BETWEEN)
    assert {row.vendor_us for row in there} == {101.0}
    winners = {row.trial_id: store.trial(row.trial_id) for row in store.best()}
    known = known_of(store, winners)
    assert sorted(point[:3] for of in known.vendor.values() for point in of) == sorted(
        (one.m, one.n, one.k) for one in BETWEEN
    )
    assert {point[:3] for of in known.elsewhere.values() for point in of} >= {(p.m, p.n, p.k) for p in BETWEEN}


def test_what_is_measured_between_is_told(store: Store) -> None:
    tuned(store)
    text = StringIO()
    device = Simulated(store, Everything())
    cross(frozenset(SHAPES), device, store, ("tsmr",), Console(file=text, width=200))
    at = [problem for _, problem in device.tried]
    between = sum(problem in BETWEEN for problem in at)
    said = f"kernels at shapes that they did not win: {len(at)} measured ({between} at shapes between the tuned ones)"
    assert said in text.getvalue()


def searched(store: Store, problem: Problem, cache: Cache = Cache.CLEAN) -> None:
    configs = [
        TsmrConfig(128, 1, columns, 8, 4, splits, 1, 1) for columns, splits in product((1, 2, 3, 4), (6, 9, 13))
    ]
    space = SearchSpace(problem, H200, ("tsmr",), [candidate_of(one, problem, H200) for one in configs], (), ())
    device = Simulated(store, Everything())
    device.options = Options(cache=cache)
    list(job.run([space], device, store, order=lambda space, _: space.kept))


def test_a_shape_between_that_is_tuned_later_has_a_winner(store: Store) -> None:
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


def test_a_shape_between_that_is_tuned_in_another_state_of_the_l2_is_one_in_this(store: Store) -> None:
    measured_between(store)
    later = BETWEEN[0]
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


def test_a_kernel_that_won_nothing_is_measured_between_too(store: Store) -> None:
    tuned(store)
    measured(store, SLOWER_AT_TUNED, full_verdict="right")
    device = Simulated(store, Slower())
    list(Crossing(frozenset(SHAPES[:1]), device, store, families=("tsmr",)).events())
    at = {problem for text, problem in device.tried if config_spelt(text).kernel_text == OTHER.kernel_text}
    assert at == set(BETWEEN)


def test_one_that_was_not_planned_either_is_measured(store: Store) -> None:
    tuned(store)
    unplanned = TsmrConfig(64, 1, 6, 8, 4, 13, 1, 1)
    measured(store, {n: 0.98 * us for n, us in SLOWER_AT_TUNED.items() if n != 16}, unplanned, full_verdict="right")
    device = Simulated(store, Everything())
    list(Crossing(frozenset(SHAPES), device, store, families=("tsmr",)).events())
    at = {problem for text, problem in device.tried if config_spelt(text).kernel_text == unplanned.kernel_text}
    assert shape(20480, 16, 20480) in at


@pytest.mark.parametrize("vendor", [False, True])
def test_what_a_killed_run_leaves_between_is_ended_by_the_next(store: Store, vendor: bool) -> None:
    tuned(store)
    device = Simulated(store, Everything())
    device.options = Options(vendor=vendor)
    events = Crossing(frozenset(SHAPES), device, store, families=("tsmr",)).events()
    if vendor:  # killed between a trial and the finals
        next(one for one in events if isinstance(one, job.TrialStored) and one.trial.is_between)
        events.close()
    else:  # or without the vendor
        list(events)
    again = Simulated(store, Everything())
    again.options = Options(vendor=True)
    list(Crossing(frozenset(SHAPES), again, store, families=("tsmr",)).events())
    assert {row.vendor_us for row in store.best(between=True)} == {101.0}
    assert all(row.round > 0 for row in store.best(between=True))


def test_what_alone_contends_is_tried(store: Store) -> None:
    tuned(store)
    device, again = Simulated(store, Slower()), Simulated(store, Slower())
    device.options = again.options = Options(vendor=True)
    list(Crossing(frozenset(SHAPES), device, store, families=("tsmr",)).events())
    between = [one for one in store.current(DEVICE) if one.is_between]
    store.forget([between[0].id], [], lambda _: None)
    list(Crossing(frozenset(SHAPES), again, store, families=("tsmr",)).events())
    assert again.tried == [(between[0].config.text, between[0].problem)]


def test_winners_and_trials_are_found_by_type_and_op(store: Store) -> None:
    tuned(store)
    for other in (replace(SHAPES[0], op="nnt"), replace(SHAPES[0], dtype_name="f64")):
        store.add_trial(RUN, stored_trial(WINNER, other, 100.0, full_verdict="right"))
    for found in (store.best(alike=SHAPES[0]), store.current(DEVICE, alike=SHAPES[0])):
        assert {one.problem for one in found} == set(SHAPES)
    assert store.searched(DEVICE, Cache.CLEAN, SHAPES[0]) == set(SHAPES)
    assert store.searched(DEVICE, Cache.WARM, SHAPES[0]) == set()
    assert store.searched("another GPU", Cache.CLEAN, SHAPES[0]) == set()


def test_what_fails_is_tried_once_in_a_run(store: Store) -> None:
    tuned(store)
    measured(store, SLOWER_AT_TUNED, full_verdict="right")
    times = {(WINNER.text, problem): 380.0 * max(problem.n // 2, 1) for problem in SHAPES}  # all else crashes
    device = Simulated(store, times | {(OTHER.text, shape(20480, n, 20480)): us for n, us in SLOWER_AT_TUNED.items()})
    device.options = Options(retried=frozenset({Outcome.CRASHED}))
    list(Crossing(frozenset(SHAPES), device, store, families=("tsmr",)).events())
    assert device.tried
    assert len(device.tried) == len({*device.tried})


def test_the_count_goes_on_from_round_to_round(store: Store) -> None:
    tuned(store)
    device = Simulated(store, Everything())
    events = Crossing(frozenset(SHAPES), device, store, families=("tsmr",)).events()
    counted = [(one.done, one.total) for one in events if isinstance(one, Crossed)]
    assert counted == sorted(counted)
    assert counted[-1] == (len(device.tried), len(device.tried))


@pytest.mark.parametrize("mark", ["2", "'x'", "0.5", "-1", "x'00'"])
def test_an_edited_mark_is_refused(store: Store, mark: str) -> None:
    tuned(store)
    plain_sql(store.path, f"UPDATE trial SET is_between = {mark} WHERE id = 1")
    with pytest.raises(StoreError, match="trial 1 is not as this tsm2-tune stores it"):
        store.best()


def test_the_vendors_wrong_answers_and_other_states_tell_nothing(store: Store) -> None:
    measured_between(store)
    winners = {row.trial_id: store.trial(row.trial_id) for row in store.best()}
    points = {(point, number) for number, of in known_of(store, winners).vendor.items() for point in of}
    for (m, n, k, _), number in points:
        own = {one: math.dist(logs(shape(m, n, k)), logs(record.trial.problem)) for one, record in winners.items()}
        assert own[number] == min(own.values())
    plain_sql(store.path, "UPDATE vendor_measurement SET verdict_correct = 0, verdict_worst_ratio = 2.0")
    assert known_of(store, winners).vendor == {}
    warm = {one: replace(record, trial=replace(record.trial, cache=Cache.WARM)) for one, record in winners.items()}
    assert known_of(store, warm).vendor == {}


def logs(problem: Problem) -> tuple[float, ...]:
    return tuple(map(math.log, (problem.m, problem.n, problem.k)))


def test_an_exported_module_expects_the_vendor_by_its_times_between_too(store: Store, tmp_path: Path) -> None:
    measured_between(store)
    output = tmp_path / "kernels.py"
    command = ["export", "--db", str(store.path), "--format", "module", "--no-binaries", "--output", str(output)]
    assert CliRunner().invoke(main, command).exit_code == 0
    module = imported(output.read_text(), tmp_path)
    at = BETWEEN[0]
    found = module.match(at.m, at.n, at.k, "float32", DEVICE)
    assert found.vendor_us == pytest.approx(101.0, rel=0.02)
    assert found.distance > 0


def test_what_another_run_has_in_hand_is_not_waited_for(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    tuned(store)
    measured(store, {n: us for n, us in SLOWER_AT_TUNED.items() if n != 16}, full_verdict="right")
    monkeypatch.setattr(Simulated, "tune", lambda *_: iter(()))
    device = Simulated(store, Everything())
    events = list(Crossing(frozenset(SHAPES), device, store, families=("tsmr",)).events())
    assert any(isinstance(one, Crossed) and one.total for one in events)
    assert device.tried == []


def test_what_was_measured_at_few_shapes_is_not(store: Store) -> None:
    winners = tuned(store)
    few = dict(list({2: 390.0, 4: 765.0, 8: 1525.0}.items())[: MEASURED - 1])
    measured(store, few, full_verdict="right")
    assert rows_between(store, winners) == []


def test_what_is_slower_everywhere_is_not(store: Store) -> None:
    winners = tuned(store)
    measured(store, {n: 20 * us for n, us in SLOWER_AT_TUNED.items()}, full_verdict="right")
    assert rows_between(store, winners) == []


@pytest.mark.parametrize(("gain", "wanted"), [(1.01, False), (1.06, True)])
def test_little_gain_is_not_worth_a_kernel(
    store: Store, monkeypatch: pytest.MonkeyPatch, gain: float, wanted: bool
) -> None:
    winners = tuned(store)
    measured(store, SLOWER_AT_TUNED, full_verdict="right")

    def times(kernels: Sequence[Any], problems: Sequence[Problem], card: Any) -> Any:
        return np.array([[100.0 / (gain if one.config == OTHER.text else 1.0)] * len(problems) for one in kernels])

    monkeypatch.setattr("tsm2_tune.tuner.export.between.expected_us", times)
    assert bool(rows_between(store, winners)) is wanted


def test_of_kernels_that_gain_the_same_one_is_enough() -> None:
    times = np.array([[50.0, 100.0, 90.0], [50.0, 100.0, 91.0], [100.0, 80.0, 100.0], [99.0, 99.0, 99.0]])
    assert list(_gaining(times, np.array([100.0, 100.0, 100.0]))) == [0, 2]


def test_trials_of_another_version_take_no_part(store: Store) -> None:
    winners = tuned(store)
    measured(store, SLOWER_AT_TUNED, full_verdict="right")
    (before,) = rows_between(store, winners)
    number = store.add_trial(RUN, stored_trial(THIRD, SHAPES[0], 500.0))
    other = """family = 'bygone', config = 'bygone-t1', tunables = '{"threads": 1}'"""
    plain_sql(store.path, f"UPDATE trial SET {other} WHERE id = {number}")
    assert rows_between(store, winners) == [before]


def test_other_types_ops_and_states_of_the_l2_have_groups_of_their_own(store: Store) -> None:
    winners = tuned(store)
    measured(store, SLOWER_AT_TUNED, full_verdict="right", cache=Cache.DIRTY)
    assert rows_between(store, winners) == []


def test_types_and_ops_do_not_mix(store: Store) -> None:
    winners = tuned(store)
    for problem in SHAPES:
        for other in (replace(problem, dtype_name="f64"), replace(problem, op="nnt")):
            store.add_trial(RUN, stored_trial(WINNER, other, 500.0, full_verdict="right"))
    measured(store, SLOWER_AT_TUNED, full_verdict="right")
    alone = rows_between(store, winners)
    assert rows_between(store, store.best()) == alone
    assert {(row.dtype, row.op) for row in alone} == {("f32", "nn")}


def test_stale_winners_want_nothing(store: Store) -> None:
    winners = tuned(store)
    measured(store, SLOWER_AT_TUNED, full_verdict="right")
    assert rows_between(store, [replace(row, stale=1) for row in winners]) == []


def test_a_run_verifies_what_is_added_for_its_own_types_alone(store: Store) -> None:
    tuned(store)
    measured(store, SLOWER_AT_TUNED)
    others = [replace(problem, dtype_name="f64") for problem in SHAPES]
    won(store, problems=others)
    device = Simulated(store, Everything())
    list(Crossing(frozenset(others), device, store, families=("none",)).events())
    assert device.in_full == []


def test_a_part_of_the_shapes_has_what_all_of_them_want(store: Store) -> None:
    winners = tuned(store)
    measured(store, SLOWER_AT_TUNED, full_verdict="right")
    (row,) = rows_between(store, winners)
    at = [one for one in winners if one.problem == row.problem]
    assert with_between(store, print, at) == [*at, row]
    others = [one for one in winners if one.problem != row.problem]
    assert with_between(store, print, others) == others


def test_what_was_not_verified_in_full_is_left_out_and_told(store: Store) -> None:
    winners = tuned(store)
    measured(store, SLOWER_AT_TUNED)
    told: list[str] = []
    assert with_between(store, told.append, winners) == [*winners]
    assert told == [
        "left out: 1 kernel for shapes between the tuned ones, not verified in full yet: tune one of these shapes"
        " again, which does that"
    ]


def test_a_run_verifies_in_full_what_an_export_adds(store: Store) -> None:
    tuned(store)
    measured(store, SLOWER_AT_TUNED)
    device = Simulated(store, Everything())
    list(Crossing(frozenset(SHAPES), device, store, families=("none",)).events())
    assert [config for config, _ in device.in_full] == [OTHER.text]
    (row,) = rows_between(store, store.best())
    assert row.verified_in_full


def test_a_full_verification_that_the_machine_interrupts_is_left_to_the_next_run(store: Store) -> None:
    tuned(store)
    measured(store, SLOWER_AT_TUNED)
    device = Simulated(store, Everything())
    device.interrupted = {OTHER.text}
    list(Crossing(frozenset(SHAPES), device, store, families=("none",)).events())
    assert [config for config, _ in device.in_full] == [OTHER.text]
    assert not any(row.verified_in_full for row in rows_between(store, store.best()))


def test_of_one_that_is_found_wrong_nothing_is_left(store: Store) -> None:
    tuned(store)
    measured(store, SLOWER_AT_TUNED)
    device = Simulated(store, Everything())
    device.wrong = {OTHER.text}
    list(Crossing(frozenset(SHAPES), device, store, families=("none",)).events())
    assert len(device.in_full) == 2  # four shapes are left after the first, three after the second
    assert rows_between(store, store.best()) == []


def test_of_a_host_nothing_is_expected(store: Store) -> None:
    for problem in SHAPES:
        for config in (WINNER, OTHER):
            store.add_trial(host_run(), stored_trial(config, problem, 100.0, full_verdict="right"))
    assert rows_between(store, store.best()) == []


@pytest.mark.parametrize(("option", "kernels"), [((), 2), (("--between",), 2), (("--no-between",), 1)])
def test_an_exported_module_has_it_and_shapes_that_were_tuned_keep_their_winners(
    store: Store, tmp_path: Path, option: tuple[str, ...], kernels: int
) -> None:
    tuned(store)
    measured(store, SLOWER_AT_TUNED, full_verdict="right")
    output = tmp_path / "kernels.py"
    command = ["export", "--db", str(store.path), "--format", "module", "--no-binaries", *option]
    ended = CliRunner().invoke(main, [*command, "--output", str(output)])
    assert (ended.exit_code, ended.output) == (0, "")
    module = imported(output.read_text(), tmp_path)
    for one in module.WINNERS:  # with the rates that its times tell
        assert one.division == fitted(one, module.CARDS[DEVICE])
    rates = {(one.division.arithmetic_rate, one.division.cached_rate) for one in module.WINNERS}
    assert (rates == {(1.0, CACHED_RATE)}) == (kernels == 1)
    assert len({one.digest for one in module.WINNERS}) == kernels
    for problem in SHAPES:
        found = module.match(problem.m, problem.n, problem.k, "float32", DEVICE)
        assert (found.winner.config, found.distance) == (WINNER.text, 0.0)
    assert (OTHER.text in {module.match(20480, n, 20480, "float32", DEVICE).winner.config for n in (5, 6)}) == (
        kernels == 2
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--format", "module", "--within", "3%"), "--between adds kernels, and --within takes the fewest"),
        (("--format", "csv"), "--between is of a module or a library: leave it out with --format csv"),
    ],
)
def test_it_is_refused_where_it_means_nothing(store: Store, arguments: tuple[str, ...], sentence: str) -> None:
    tuned(store)
    command = ["export", "--db", str(store.path), "--between", "--output", "-", *arguments]
    ended = CliRunner().invoke(main, command)
    assert ended.exit_code == 2
    assert sentence in ended.output
