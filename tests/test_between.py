"""Kernels for shapes between the tuned ones: which these are, what is measured, and what a program gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from math import exp
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.command import run
from tests.fabricated import host_run, imported
from tests.simulated import DEVICE, RUN, Simulated, stored_trial
from tests.times_between import (
    H200,
    OTHER,
    SHAPES,
    SLOWER_AT_TUNED,
    WINNER,
    Everything,
    measured,
    shape,
    tuned,
)
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.intermediate_shapes import (
    LEAST_DISTANCE,
    kernels_between,
    shapes_between,
)
from tsm2_tune.tuner.export.kernel_sets.intermediate_winners import MEASURED, _gaining, rows_between, with_between
from tsm2_tune.tuner.measure.cross_timing import MOST_BETWEEN, CrossTiming
from tsm2_tune.tuner.packs.candidate_times import candidate_times_us
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Cache, Outcome

pytestmark = pytest.mark.slow

TUNED = [shape(20480, n, 4096 * step) for n, step in ((1, 1), (2, 4), (4, 2), (8, 5), (16, 3), (32, 1), (64, 4))]


def won(store: Store, config: Any = WINNER, problems: Sequence[Problem] = TUNED, **changes: Any) -> None:
    for problem in problems:
        store.add_trial(RUN, stored_trial(config, problem, 100.0, **({"full_verdict": "right"} | changes)))


def test_kernels_for_shapes_between_are_measured_at_the_nearest_tuned_ones(store: Store) -> None:
    won(store)
    list(CrossTiming(frozenset(TUNED), Simulated(store, Everything()), store).events())
    kernels: dict[str, set[Problem]] = {}
    for one in store.current(DEVICE):
        if one.config.kernel_text != WINNER.kernel_text and not one.is_between:
            kernels.setdefault(one.config.kernel_text, set()).add(one.problem)
    assert kernels.keys() <= kernels_between(TUNED, H200, candidate_times_us).keys()
    assert len(kernels) > len(TUNED) / 2
    assert max(map(len, kernels.values())) == MOST_BETWEEN
    again = Simulated(store, Everything())
    assert (list(CrossTiming(frozenset(TUNED), again, store).events()), again.tried) == ([], [])


def test_between_too_few_shapes_nothing_is(store: Store) -> None:
    few, device = TUNED[: MEASURED - 1], Simulated(store, Everything())
    won(store, problems=few)
    list(CrossTiming(frozenset(few), device, store).events())
    assert {problem for _, problem in device.tried} <= {*few}


def test_on_a_host_only_winners_kernels_are(store: Store) -> None:
    won(store)
    device: Any = Simulated(store, Everything())
    device.target = SimpleNamespace(**vars(device.target) | {"is_host": True})
    list(CrossTiming(frozenset(TUNED), device, store).events())
    assert device.tried == []
    for problem, config in product(SHAPES, (WINNER, OTHER)):
        store.add_trial(host_run(), stored_trial(config, problem, 100.0, full_verdict="right"))
    assert rows_between(store, store.best(device=host_run().identity.name)) == []


FASTER = {2: 390.0, 4: 765.0, 8: 1525.0, 16: 3045.0, 32: 6085.0}


def test_kernel_without_wins_is_added_where_predicted_faster(store: Store) -> None:
    winners = tuned(store)
    assert rows_between(store, winners) == []
    measured(store, FASTER, full_verdict="right")
    (row,) = rows_between(store, winners)
    assert (row.config, row.problem) == (OTHER.text, shape(20480, 32, 20480))  # where it is nearest to the winner
    at, others = ([one for one in winners if (one.problem == row.problem) is is_at] for is_at in (True, False))
    for some, added in ((winners, [row]), (at, [row]), (others, [])):  # a part has what all shapes want
        assert with_between(store, print, some) == [*some, *added]
    for problem in SHAPES:  # types and ops do not mix
        for other in (replace(problem, dtype_name="f64"), replace(problem, op="nnt")):
            store.add_trial(RUN, stored_trial(WINNER, other, 500.0, full_verdict="right"))
    assert rows_between(store, store.best()) == [row]


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


def test_of_kernels_that_gain_the_same_one_is_enough() -> None:
    times = np.array([[50.0, 100.0, 90.0], [50.0, 100.0, 91.0], [100.0, 80.0, 100.0], [99.0, 99.0, 99.0]])
    assert list(_gaining(times, np.array([100.0, 100.0, 100.0]))) == [0, 2]


def test_what_was_not_verified_in_full_is_left_out_and_told(store: Store) -> None:
    winners = tuned(store)
    measured(store, SLOWER_AT_TUNED)
    (row,), told = rows_between(store, winners), list[str]()
    assert with_between(store, told.append, winners) == [*winners]
    assert told == [
        f"left out: 1 kernel that may be faster between the tuned shapes on {DEVICE}, not verified in full (winners"
        f" are used there): to verify them, run `tsm2-tune --db {store.path} --cache clean --shapes"
        f" {row.problem.text}` on that device, then this again"
    ]
    list(CrossTiming(frozenset({row.problem}), Simulated(store, Everything()), store, families=("none",)).events())
    assert with_between(store, told.append, winners) == [*winners, replace(row, verified_in_full=1)]


@pytest.mark.parametrize(
    ("outcome", "verified", "added"),
    [
        (Outcome.OK, 1, [1]),
        (Outcome.INTERRUPTED, 1, [0]),
        (Outcome.WRONG_RESULT, 2, []),  # four shapes are left after a wrong one, then three
    ],
)
def test_a_run_verifies_in_full_what_an_export_adds(
    store: Store, outcome: Outcome, verified: int, added: list[int]
) -> None:
    tuned(store)
    measured(store, SLOWER_AT_TUNED)
    device = Simulated(store, Everything())
    device.refuted[OTHER.text] = outcome
    list(CrossTiming(frozenset(SHAPES), device, store, families=("none",)).events())
    assert [config for config, _ in device.in_full] == [OTHER.text] * verified
    assert [row.verified_in_full for row in rows_between(store, store.best())] == added


@pytest.mark.parametrize(("option", "kernels"), [((), 2), (("--between",), 2), (("--no-between",), 1)])
def test_module_has_the_kernel_and_tuned_shapes_keep_winners(
    store: Store, tmp_path: Path, option: tuple[str, ...], kernels: int
) -> None:
    tuned(store)
    measured(store, SLOWER_AT_TUNED, full_verdict="right")
    output = tmp_path / "kernels.py"
    command = ["export", "--db", str(store.path), "--format", "module", "--no-binaries", *option]
    ended = run(*command, "--output", str(output))
    count = f"{kernels} kernel{'s' * (kernels > 1)}"
    assert (ended.exit_code, ended.output) == (0, f"wrote {output}: {count} for 5 problems\n")
    module = imported(output.read_text(), tmp_path)
    assert len({one.digest for one in module.WINNERS}) == kernels
    for problem in SHAPES:
        found = module.match(problem.m, problem.n, problem.k, "float32", DEVICE)
        assert (found.winner.config, found.is_tuned) == (WINNER.text, True)
    elsewhere = {module.match(20480, n, 20480, "float32", DEVICE).winner.config for n in (5, 6)}
    assert (OTHER.text in elsewhere) == (kernels == 2)


ENDS = shape(1000, 1, 1000), shape(1000, 64, 1000)


@pytest.mark.parametrize(
    ("tuned", "between"),
    [
        ([shape(4096, 4, 1024), shape(1024, 16, 4096)], [shape(2048, 8, 2048)]),
        (ENDS, [shape(1000, 8, 1000)]),
        ([*ENDS, shape(1000, 8, 1000)], [shape(1000, 3, 1000), shape(1000, 23, 1000)]),
        # nearer to the mean of the ends than these are, and not so near that it is the mean
        ([*ENDS, shape(2000, 8, 1000)], [shape(1414, 3, 1000), shape(1414, 23, 1000)]),
        ([shape(4, 4, 1000, op="tx"), shape(64, 64, 1000, op="tx")], [shape(16, 16, 1000, op="tx")]),
        ([shape(20480, n, 20480) for n in (1, 2, 4, 8)], [shape(20480, n, 20480) for n in (3, 6)]),  # of 1 and 2: 1
        ([shape(1000, 8, 1000), shape(int(1000 * exp(2 * LEAST_DISTANCE) * 0.98), 8, 1000)], []),
        ([shape(1000, 8, 1000)], []),
    ],
)
def test_between_two_shapes_there_is_their_mean(tuned: list[Problem], between: list[Problem]) -> None:
    assert sorted(shapes_between(tuned)) == sorted(between)
