"""The simulation of a campaign's transactions."""

from __future__ import annotations

import pytest

from benchmarks.scale import recorded
from benchmarks.scale_simulation import SPEEDS, Load, made_apart, mixed, simulated

LOAD = Load(trials_per_second=10.0, server_seconds=0.01)


def test_one_gpu_waits_for_its_own_transactions_alone() -> None:
    found = simulated([LOAD], cores=1)
    assert found.waits[-1] == 0.0
    assert found.trials == pytest.approx(1 / (1 + 0.01 * 10), rel=0.02)  # the transaction's own time
    assert found.busy == pytest.approx(10 * 0.01 / 1.1, rel=0.1)


def test_a_full_server_stores_what_its_processors_can() -> None:
    found = simulated([LOAD] * 400, cores=4)
    assert found.busy > 0.99
    assert found.trials * 400 * LOAD.trials_per_second == pytest.approx(4 / LOAD.server_seconds, rel=0.05)
    # All but those that are served wait: by Little's law, for what each has to do but make a trial and store it.
    assert found.wait(0.5) == pytest.approx(400 / (4 / LOAD.server_seconds) - 0.1 - 0.01, rel=0.1)


def test_waits_grow_with_the_number_of_gpus_and_a_server_a_kind_ends_them() -> None:
    search, found = recorded().searches[0], recorded()
    few, many = (mixed(search, found, gpus) for gpus in (100, 1000))
    assert simulated(few, 16).wait(0.99) <= simulated(many, 16).wait(0.5)
    assert simulated(many, 16).trials < 0.9 < made_apart(many)
    assert len({one.trials_per_second for one in many}) == len(SPEEDS)


def test_the_same_seed_gives_the_same() -> None:
    assert simulated([LOAD] * 50, cores=2, seed=1) == simulated([LOAD] * 50, cores=2, seed=1)
    assert simulated([LOAD] * 50, cores=2, seed=1) != simulated([LOAD] * 50, cores=2, seed=2)
