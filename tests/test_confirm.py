"""Finals that are repeated: whether the winner wins again, how its time has drifted, and what is wrong now."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.command import TUNE, refused, run
from tests.fabricated import plain_sql
from tests.simulated import DEVICE, KERNELS, RUN, SHAPES, TODAY, Simulated, stored_trial
from tsm2_tune.commands.confirm import facts
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Final, Outcome
from tsm2_tune.tuner.runs.events import Confirmed, FinalStored
from tsm2_tune.tuner.search import confirm
from tsm2_tune.tuner.search.fixed_list import problem_session
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.quarantine import entries
from tsm2_tune.tuner.worker.client import AttemptResult

SHAPE = SHAPES[0]
A, B, C, D, *_ = KERNELS
MEASURED = "SELECT id, trial_id, round, median_us FROM measurement ORDER BY id"


def confirmed(
    store: Store, before: dict[Any, float], now: dict[Any, float], **changes: Any
) -> tuple[Confirmed, Simulated]:
    """Confirm kernels that took the times `before` and now take others when they are timed in turns."""
    for config, us in before.items():
        store.add_trial(RUN, stored_trial(config, SHAPE, us))
    then, again = ({(config.text, SHAPE): us for config, us in each.items()} for each in (before, now))
    tuner = Simulated(store, then, again)
    for name, value in changes.items():
        setattr(tuner, name, value)
    events = list(confirm.confirm(store.best(device=DEVICE), tuner, store))
    assert isinstance(events[-1], Confirmed)
    return events[-1], tuner


def test_a_winner_that_wins_again_is_kept(store: Store, path: Path) -> None:
    found, tuner = confirmed(store, {A: 100.0, B: 103.0, C: 150.0}, {A: 101.0, B: 104.0})
    assert found.is_kept
    assert found.drift == pytest.approx(0.01)
    assert found.spread == pytest.approx(0.1 / 100 + 0.1 / 101, rel=0.1)
    assert str(found) == f"{SHAPE.text}: kept: {A.text} 100.0 us, now 101.0 us (+1.0 %, spread 0.2 %)"
    assert tuner.rounds == [(SHAPE, frozenset((A.text, B.text)))]
    assert tuner.in_full == [(A.text, SHAPE), (B.text, SHAPE)]
    before = plain_sql(path, MEASURED)
    again = Simulated(store, {(A.text, SHAPE): 102.0, (B.text, SHAPE): 104.0})
    list(confirm.confirm(store.best(device=DEVICE), again, store))
    after = plain_sql(path, MEASURED)
    assert after[: len(before)] == before
    assert [row[2] for row in after[len(before) :]] == [2, 2]  # the next round


@pytest.mark.parametrize(
    ("now_us", "change"), [(28.0, "faster"), (94.0, "faster"), (96.0, ""), (104.0, ""), (106.0, "slower")]
)
def test_a_winner_whose_time_changed_is_not_kept(store: Store, now_us: float, change: str) -> None:
    """By more than 5 % beyond the spread."""
    found, _ = confirmed(store, {A: 100.0}, {A: now_us})
    assert (found.change, found.is_kept, facts(found)["change"]) == (change, not change, change)
    assert str(found).startswith(f"{SHAPE.text}: {change or 'kept'}: ")


def test_a_winner_that_another_overtakes_has_changed(store: Store) -> None:
    found, _ = confirmed(store, {A: 100.0, B: 103.0}, {A: 110.0, B: 90.0})
    assert found.now is not None
    assert (found.is_kept, found.now.config, found.now.median_us) == (False, B.text, 90.0)
    assert str(found).endswith(f"; {B.text} wins with 90.0 us")


def test_rounds_go_on_until_the_fastest_was_among_them(store: Store) -> None:
    """All are slower now: what was not among the finalists seems fastest, until it is timed beside them."""
    found, tuner = confirmed(store, {A: 100.0, B: 103.0, C: 120.0}, {A: 130.0, B: 134.0, C: 150.0})
    assert [members for _, members in tuner.rounds] == [{A.text, B.text}, {A.text, C.text}]
    assert found.now is not None
    assert (found.change, found.now.config) == ("slower", A.text)
    assert (C.text, SHAPE) in tuner.in_full


def test_samples_of_a_dropped_clock_are_told(store: Store) -> None:
    found, _ = confirmed(store, {A: 100.0, B: 103.0}, {A: 100.0, B: 103.0}, slowed=2)
    assert found.is_kept
    assert str(found).endswith("; 2 samples while the clock had dropped")
    assert facts(found)["slowed_samples"] == 2


def test_a_kernel_that_is_wrong_now_competes_no_more(store: Store, path: Path) -> None:
    found, tuner = confirmed(
        store, {A: 100.0, B: 103.0, C: 150.0}, {B: 103.0, C: 150.0}, refuted={A.text: Outcome.WRONG_RESULT}
    )
    assert ([one.config for one in found.wrong], found.again) == ([A.text], None)
    assert (found.is_kept, found.now and found.now.config) == (False, B.text)
    assert "is wrong now: it was so" in str(found)
    assert tuner.rounds == [(SHAPE, frozenset((B.text, C.text)))]
    tried = store.history(DEVICE, SHAPE, ("tsm2",), TODAY).tried()
    assert [one.outcome for one in tried] == [Outcome.WRONG_RESULT, Outcome.OK, Outcome.OK]
    assert len(plain_sql(path, f"{MEASURED[:-12]} WHERE round = 0")) == 3


def test_a_kernel_that_faults_now_is_quarantined(store: Store) -> None:
    found, _ = confirmed(store, {A: 100.0, B: 103.0}, {B: 103.0}, refuted={A.text: Outcome.CRASHED})
    assert [one.outcome for one in found.wrong] == [Outcome.CRASHED]
    assert [one.config for one in entries(store.database)] == [A.text]


BOTH_WRONG = dict.fromkeys((A.text, B.text), Outcome.WRONG_RESULT)


@pytest.mark.parametrize(
    ("changes", "winner", "rounds", "trouble"),
    [
        ({"refuted": BOTH_WRONG}, None, 0, ""),
        ({"refuted": {B.text: Outcome.WRONG_RESULT}}, A, 1, ""),
        ({"refuted": {A.text: Outcome.INTERRUPTED}}, A, 0, "it was so"),
        ({"failure": AttemptResult(Outcome.CRASHED, "the worker died")}, A, 0, "the worker died"),
    ],
    ids=["all are wrong", "the second is wrong", "the machine interrupts", "the final fails"],
)
def test_what_fails_is_told(store: Store, changes: dict[str, Any], winner: Any, rounds: int, trouble: str) -> None:
    found, tuner = confirmed(store, {A: 100.0, B: 103.0}, {A: 100.0}, **changes)
    assert (found.is_kept, found.now and found.now.config) == (False, winner and winner.text)
    assert (found.trouble, len(tuner.rounds)) == (trouble, rounds)
    assert str(found).endswith(trouble)
    wrong = Outcome.WRONG_RESULT in changes.get("refuted", {}).values()
    assert bool(found.wrong) is wrong


def test_a_kernel_that_is_made_otherwise_now_is_not_timed(store: Store) -> None:
    store.add_trial(RUN, stored_trial(A, SHAPE, 100.0, basis="another compiler"))
    tuner = Simulated(store, {})
    (found,) = confirm.confirm(store.best(device=DEVICE), tuner, store)
    assert isinstance(found, Confirmed)
    assert (found.is_kept, found.trouble, tuner.rounds) == (False, confirm.CHANGED, [])


@pytest.mark.parametrize("was_there", [True, False])
def test_the_vendor_is_timed_where_it_was_beside(store: Store, was_there: bool) -> None:
    times = {(A.text, SHAPE): 100.0, (B.text, SHAPE): 103.0}
    for config in (A, B):
        store.add_trial(RUN, stored_trial(config, SHAPE, times[config.text, SHAPE]))
    tuner = Simulated(store, times)
    tuner.options = Options(vendor=was_there)
    history = problem_session(SHAPE, ("tsm2",), tuner, store, "").history
    before = tuner.final(SHAPE, history.prior(confirm.NO_RETRIES, ("tsm2",)))
    assert isinstance(before, Final)
    store.add_final(RUN, before, ("tsm2",), TODAY)
    tuner.options = Options(vendor=True)
    events = list(confirm.confirm(store.best(device=DEVICE), tuner, store))
    (repeated,) = (event for event in events if isinstance(event, FinalStored))
    assert bool(repeated.final.vendor) == was_there


@pytest.mark.slow
@pytest.mark.usefixtures("toolchain", "session_cache", "no_driver", "known_ceilings")
def test_the_command_repeats_what_was_tuned_here(path: Path) -> None:
    shapes = [{"64x2x64": "64x2x64,96x2x64", "1": "2"}.get(one, one) for one in TUNE]
    assert run(*shapes, "--db", str(path)).exit_code == 0
    before = plain_sql(path, MEASURED)
    found = run("confirm", "--db", str(path), "--shapes", "64x2x64")
    (line,) = found.output.splitlines()
    assert line.startswith("64x2x64:f32: ")
    assert found.exit_code == int(": kept: " not in line)
    assert plain_sql(path, MEASURED)[: len(before)] == before
    told = json.loads(run("confirm", "--json", "--db", str(path), "--device", "cpu").output)
    assert [one["problem"] for one in told] == ["64x2x64:f32", "96x2x64:f32"]
    assert all(one["remeasured_us"] > 0 and one["error"] == "" for one in told)


def test_the_exit_status_tells_of_changes(path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, _ = confirmed(store, {A: 100.0, B: 103.0}, {A: 100.0, B: 103.0})
    changed = replace(kept, now=replace(kept.before, config=B.text))
    for every, status in (((kept,), 0), ((kept, changed), 1)):
        monkeypatch.setattr("tsm2_tune.confirm", lambda *_, found=every, **__: found)
        assert run("confirm", "--db", str(path)).exit_code == status
        told = json.loads(run("confirm", "--db", str(path), "--json").output)
        assert [one["kept"] for one in told] == [True, False][: len(every)]


@pytest.mark.slow
@pytest.mark.usefixtures("toolchain", "session_cache", "no_driver")
def test_a_database_without_winners_here_is_refused(path: Path, store: Store) -> None:
    store.add_trial(RUN, stored_trial(A, SHAPE, 100.0))
    for device, said in (
        ((), "has no winner for this selection on this device"),
        (("--device", DEVICE), "is not in this machine: run this on the machine that has it"),
        (("--device", "\uff10"), "no trial of the device '\uff10' in"),
    ):
        assert said in refused("confirm", *device, path=path)
