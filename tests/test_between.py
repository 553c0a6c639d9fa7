"""Kernels for shapes between the tuned ones: which these are, what is measured, and what a program gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tests.fabricated import host_run, imported, plain_sql
from tests.simulated import DEVICE, RUN, Simulated, stored_trial
from tests.times_between import (
    H200,
    OTHER,
    SHAPES,
    SLOWER_AT_TUNED,
    THIRD,
    WINNER,
    Everything,
    measured,
    predict,
    shape,
    tuned,
)
from tsm2_tune.cli import main
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.intermediate_shapes import kernels_between
from tsm2_tune.tuner.export.kernel_sets.intermediate_winners import MEASURED, _gaining, rows_between, with_between
from tsm2_tune.tuner.measure.cross_timing import MOST_BETWEEN, CrossTiming
from tsm2_tune.tuner.packs.candidate_times import candidate_times_us
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Cache

# Measurements


TUNED = [shape(20480, n, 4096 * step) for n, step in ((1, 1), (2, 4), (4, 2), (8, 5), (16, 3), (32, 1), (64, 4))]


def won(store: Store, config: Any = WINNER, problems: Sequence[Problem] = TUNED, **changes: Any) -> None:
    for problem in problems:
        store.add_trial(RUN, stored_trial(config, problem, 100.0, **({"full_verdict": "right"} | changes)))


def test_kernels_for_shapes_between_are_measured_at_the_nearest_tuned_ones(store: Store) -> None:
    won(store)
    device = Simulated(store, Everything())
    list(CrossTiming(frozenset(TUNED), device, store).events())
    kernels: dict[str, set[Problem]] = {}
    for one in store.current(DEVICE):
        if one.config.kernel_text != WINNER.kernel_text and not one.is_between:
            kernels.setdefault(one.config.kernel_text, set()).add(one.problem)
    planned = kernels_between(TUNED, H200, candidate_times_us)
    assert kernels.keys() <= planned.keys()
    assert len(kernels) > len(TUNED) / 2
    assert max(map(len, kernels.values())) == MOST_BETWEEN
    again = Simulated(store, Everything())
    assert list(CrossTiming(frozenset(TUNED), again, store).events()) == []
    assert again.tried == []


def test_between_too_few_shapes_nothing_is(store: Store) -> None:
    few = TUNED[: MEASURED - 1]
    won(store, problems=few)
    device = Simulated(store, Everything())
    list(CrossTiming(frozenset(few), device, store).events())
    assert {problem for _, problem in device.tried} <= {*few}


def test_on_a_host_only_winners_kernels_are(store: Store) -> None:
    won(store)
    device: Any = Simulated(store, Everything())
    device.target = SimpleNamespace(**vars(device.target) | {"is_host": True})
    list(CrossTiming(frozenset(TUNED), device, store).events())
    assert device.tried == []


# Results for a program


def test_kernel_without_wins_is_added_where_predicted_faster(store: Store) -> None:
    winners = tuned(store)
    assert rows_between(store, winners) == []
    measured(store, FASTER, full_verdict="right")
    (row,) = rows_between(store, winners)
    assert row.config == OTHER.text
    assert row.problem.n == 32  # where it is nearest to the winner
    assert row.problem in SHAPES
    assert with_between(store, print, winners) == [*winners, row]


FASTER = {2: 390.0, 4: 765.0, 8: 1525.0, 16: 3045.0, 32: 6085.0}


@pytest.mark.parametrize(
    ("us", "changes"),
    [
        (dict(list(FASTER.items())[: MEASURED - 1]), {}),
        ({n: 20 * us for n, us in SLOWER_AT_TUNED.items()}, {}),
        (SLOWER_AT_TUNED, {"cache": Cache.DIRTY}),
    ],
    ids=["few shapes", "slower everywhere", "another state of the L2"],
)
def test_what_gains_nothing_is_not_added(store: Store, us: dict[int, float], changes: dict[str, Any]) -> None:
    winners = tuned(store)
    measured(store, us, full_verdict="right", **changes)
    assert rows_between(store, winners) == []


@pytest.mark.parametrize(("gain", "wanted"), [(1.01, False), (1.06, True)])
def test_little_gain_is_not_worth_a_kernel(
    store: Store, monkeypatch: pytest.MonkeyPatch, gain: float, wanted: bool
) -> None:
    winners = tuned(store)
    measured(store, SLOWER_AT_TUNED, full_verdict="right")

    def times(kernels: Sequence[Any], problems: Sequence[Problem], card: Any) -> Any:
        us = np.array(
            [[100.0 / (gain if one.winner.config == OTHER.text else 1.0)] * len(problems) for one in kernels]
        )
        return us, np.full_like(us, 132)

    predict(monkeypatch, "intermediate_winners", times)
    assert bool(rows_between(store, winners)) is wanted


def test_of_kernels_that_gain_the_same_one_is_enough() -> None:
    times = np.array([[50.0, 100.0, 90.0], [50.0, 100.0, 91.0], [100.0, 80.0, 100.0], [99.0, 99.0, 99.0]])
    assert list(_gaining(times, np.array([100.0, 100.0, 100.0]))) == [0, 2]


def test_trials_of_another_version_take_no_part(store: Store, path: Path) -> None:
    winners = tuned(store)
    measured(store, SLOWER_AT_TUNED, full_verdict="right")
    (before,) = rows_between(store, winners)
    number = store.add_trial(RUN, stored_trial(THIRD, SHAPES[0], 500.0))
    other = """family = 'bygone', config = 'bygone-t1', tunables = '{"threads": 1}'"""
    plain_sql(path, f"UPDATE trial SET {other} WHERE id = {number}")
    assert rows_between(store, winners) == [before]


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
    list(CrossTiming(frozenset(others), device, store, families=("none",)).events())
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
        "left out: 1 kernel that may be faster between the tuned shapes, not verified in full (winners are used"
        f" there): to verify them, tune the tuned shapes again on {DEVICE}"
    ]


@pytest.mark.parametrize(
    ("trouble", "verified", "added"),
    [("", 1, [1]), ("interrupted", 1, [0]), ("wrong", 2, [])],  # four shapes are left after a wrong one, then three
)
def test_a_run_verifies_in_full_what_an_export_adds(
    store: Store, trouble: str, verified: int, added: list[int]
) -> None:
    tuned(store)
    measured(store, SLOWER_AT_TUNED)
    device = Simulated(store, Everything())
    if trouble:
        setattr(device, trouble, {OTHER.text})
    list(CrossTiming(frozenset(SHAPES), device, store, families=("none",)).events())
    assert [config for config, _ in device.in_full] == [OTHER.text] * verified
    assert [row.verified_in_full for row in rows_between(store, store.best())] == added


def test_of_a_host_nothing_is_expected(store: Store) -> None:
    for problem in SHAPES:
        for config in (WINNER, OTHER):
            store.add_trial(host_run(), stored_trial(config, problem, 100.0, full_verdict="right"))
    assert rows_between(store, store.best()) == []


@pytest.mark.parametrize(("option", "kernels"), [((), 2), (("--between",), 2), (("--no-between",), 1)])
def test_module_has_the_kernel_and_tuned_shapes_keep_winners(
    store: Store, tmp_path: Path, option: tuple[str, ...], kernels: int
) -> None:
    tuned(store)
    measured(store, SLOWER_AT_TUNED, full_verdict="right")
    output = tmp_path / "kernels.py"
    command = ["export", "--db", str(store.path), "--format", "module", "--no-binaries", *option]
    ended = CliRunner().invoke(main, [*command, "--output", str(output)])
    count = "2 kernels" if kernels == 2 else "1 kernel"
    assert (ended.exit_code, ended.output) == (
        0,
        f"wrote {output}: {count} for 5 problems\n",
    )
    module = imported(output.read_text(), tmp_path)
    assert len({one.digest for one in module.WINNERS}) == kernels
    for problem in SHAPES:
        found = module.match(problem.m, problem.n, problem.k, "float32", DEVICE)
        assert (found.winner.config, found.is_tuned) == (WINNER.text, True)
    assert (OTHER.text in {module.match(20480, n, 20480, "float32", DEVICE).winner.config for n in (5, 6)}) == (
        kernels == 2
    )
