"""No order of imports of several databases matters."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import tsm2_tune
from tests.databases import C128, C256, C512, TODAY, ended, facts
from tests.fabricated import PROBLEM, final, kernel, source, trial, tuning_run, vendor_measurement
from tsm2_tune.tuner.results.merge.union import union
from tsm2_tune.tuner.results.records import current_kernel
from tsm2_tune.tuner.results.store import Store

pytestmark = pytest.mark.usefixtures("session_cache")


def random_database(path: Path, rng: random.Random) -> None:
    """Some of a few trials and finals, of which other databases may have the same."""
    runs = [tuning_run(uuid=f"GPU-{which}", started_at=f"2026-01-0{which}T00:00:00+00:00") for which in (1, 2, 3)]
    with Store.open(path, create=True) as store:
        for config in (C128, C256, C512):
            for one in rng.sample(runs, k=1):
                us = 500.0 + int(one.identity.uuid[-1]) + config.threads / 100
                verdict = rng.choice((None, "right"))
                made = rng.choice((source(config, text="int older;\n"), kernel(config, PROBLEM)))
                store.add_trial(one, trial(us, config, full_verdict=verdict, source=made))
        for one in sorted(rng.sample(runs, k=rng.randint(0, 3)), key=lambda run: run.started_at):
            at = int(one.identity.uuid[-1])
            store.add_final(
                one, final((C128, 480.0 + at), (C256, 490 + at), vendor=(vendor_measurement(600.0 + at),)), *TODAY
            )
    ended(path, "2026-01-05T00:00:00+00:00")


@pytest.mark.parametrize("seed", range(6))
def test_no_order_of_imports_matters(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    paths = [tmp_path / f"{which}.db" for which in range(3)]
    for path in paths:
        random_database(path, rng)
    ends = []
    for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0, 1, 0)):
        path = tmp_path / f"{''.join(map(str, order))}.db"
        for which in order:
            tsm2_tune.import_trials(paths[which], path)
        ends.append(facts(path))
    assert ends[0] == ends[1] == ends[2]
    (part,) = ends[0].values()
    assert union(part, part, lambda tried: current_kernel(PROBLEM, tried.values) is not None) is part
