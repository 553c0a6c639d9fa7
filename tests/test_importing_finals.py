"""Finals of other databases: which one is which, by its times, and in which order they are."""

from __future__ import annotations

from pathlib import Path

import pytest

import tsm2_tune
from tests.fabricated import final, plain_sql, trial, tuning_run, vendor_measurement
from tests.test_importing import C128, C256, C512, EARLY, TODAY, ended, facts
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.tuner.store import Store
from tsm2_tune.tuner.trial import TuningRun, VendorMeasurement

pytestmark = pytest.mark.usefixtures("session_cache")


def rounds(path: Path) -> list[tuple[int, dict[KernelConfig, float]]]:
    """The finals of PROBLEM by number, each with its times."""
    (part,) = facts(path).values()
    spelt = {config.text: config for config in (C128, C256, C512)}
    return [
        (one.number, {spelt[key[0]]: us.values["median_us"] for key, us in one.timed.items()}) for one in part.rounds
    ]


def with_finals(
    path: Path, *finals: dict[KernelConfig, float], vendor: tuple[VendorMeasurement, ...] = (), run: TuningRun = EARLY
) -> None:
    """A database of one run with these finals, the vendor's times in each."""
    with Store.open(path, create=True) as store:
        for config in (C128, C256, C512):
            store.add_trial(run, trial(500, config))
        for times in finals:
            store.add_final(run, final(*times.items(), vendor=vendor), *TODAY)
    ended(path, "2026-01-02T03:05:00+00:00")


@pytest.mark.parametrize("other", [{C128: 480.0, C256: 491.0, C512: 492.0}, {C512: 492.0}])
@pytest.mark.parametrize("is_there", [False, True])
def test_a_final_is_another_where_one_of_its_times_is_or_all_are(
    is_there: bool, other: dict[KernelConfig, float], tmp_path: Path
) -> None:
    one, ours, theirs = {C128: 480.0, C256: 490.0}, tmp_path / "ours.db", tmp_path / "theirs.db"
    with_finals(ours, *([one, other] if is_there else [one]))
    with_finals(theirs, other)
    assert tsm2_tune.import_trials(theirs, ours).times == (0 if is_there else len(other))
    assert rounds(ours) == [(1, one), (2, other)]


def test_what_is_more_of_a_final_goes_to_the_one_that_shares_most_with_it(tmp_path: Path) -> None:
    part, most, whole = {C128: 480.0}, {C128: 480.0, C256: 490.0}, {C128: 480.0, C256: 490.0, C512: 492.0}
    with_finals(tmp_path / "ours.db", part, most, part)
    with_finals(tmp_path / "theirs.db", whole, vendor=(vendor_measurement(700),))
    assert tsm2_tune.import_trials(tmp_path / "theirs.db", tmp_path / "ours.db").times == 2
    assert plain_sql(tmp_path / "ours.db", "SELECT round, median_us FROM vendor_measurement") == [(2, 700)]
    assert rounds(tmp_path / "ours.db") == [(1, part), (2, whole), (3, part)]


def test_finals_of_a_run_keep_their_order(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours.db", tmp_path / "theirs.db"
    first, second = {C512: 492.0}, {C128: 480.0}
    with_finals(ours, second)
    with_finals(theirs, first, second)
    tsm2_tune.import_trials(theirs, ours)
    assert rounds(ours) == rounds(theirs) == [(1, first), (2, second)]


def test_finals_of_several_runs_are_in_the_order_of_their_starts(tmp_path: Path) -> None:
    first, second, runs = {C512: 492.0}, {C128: 480.0}, list[TuningRun]()
    for number, day in ((2, 3), (1, 4)):  # a GPU's name says nothing of it
        runs.append(tuning_run(uuid=f"GPU-{number}", started_at=f"2026-01-0{day}T00:00:00+00:00"))
    ours, theirs = tmp_path / "ours.db", tmp_path / "theirs.db"
    with_finals(ours, second, run=runs[1])
    with_finals(theirs, first, run=runs[0])
    tsm2_tune.import_trials(theirs, ours)
    assert rounds(ours) == [(1, first), (2, second)]
