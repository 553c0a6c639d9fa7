"""Stored kernels: those that hung or faulted are left out, and winners are confirmed by finals that are repeated."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.command import TUNE, completed, refused, run
from tests.fabricated import plain_sql
from tests.simulated import DEVICE, KERNELS, RUN, SHAPES, TARGET, TODAY, Simulated, Times, stored_trial
from tsm2_tune.api.confirm import CHANGED, confirmations
from tsm2_tune.commands.confirm import facts
from tsm2_tune.commands.results.quarantine import print_quarantined
from tsm2_tune.errors import InputError, StoreError
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.families.stream_a import StreamAFmaConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.generator.space.space import SearchSpace
from tsm2_tune.tuner.device.target import Target
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Final, Outcome, TimeLimits, Trial
from tsm2_tune.tuner.runs.events import Confirmed, FinalStored, ProblemEnded
from tsm2_tune.tuner.runs.problem_queue import tune_problems
from tsm2_tune.tuner.search import quarantine
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.quarantine import entries, forgive, hazards, kernel_digest, quarantined
from tsm2_tune.tuner.search.session import candidate_of, judged, problem_session
from tsm2_tune.tuner.search.strategies import exhaustive
from tsm2_tune.tuner.worker.client import AttemptResult

FIRST, SECOND = SHAPES[:2]
BAD, GOOD = KERNELS[:2]
BOTH = {(BAD.text, SECOND): 50.0, (GOOD.text, FIRST): 100.0, (GOOD.text, SECOND): 200.0}  # BAD faults on FIRST
LIMITS = TimeLimits(120.0, 60.0)
H200 = PROFILES["h200"]
WITHOUT = {"verdict": None, "measurement": None, "limits": LIMITS}


def searched(
    store: Store, problems: Sequence[Problem], times: Times, faulting: Collection[str] = (), **options: Any
) -> tuple[list[tuple[str, Problem]], list[ProblemEnded]]:
    """Search these for BAD and GOOD; what was tried, and how each problem ended."""
    spaces = [
        SearchSpace(one, H200, ("tsm2",), [candidate_of(config, one, H200) for config in (BAD, GOOD)], (), ())
        for one in problems
    ]
    device = Simulated(store, times, **options)
    device.refuted = dict.fromkeys(faulting, Outcome.CRASHED)
    events = list(tune_problems(spaces, device, store, make_strategy=exhaustive, families=("tsm2",)))
    return device.tried, [one for one in events if isinstance(one, ProblemEnded)]


def failed_and_right() -> tuple[Trial, Trial]:
    return stored_trial(BAD, FIRST, None, limits=LIMITS), stored_trial(BAD, SECOND, 50.0)


def test_a_kernel_that_faulted_is_left_out_until_it_is_forgiven(store: Store) -> None:
    tried, ended = searched(store, (FIRST, SECOND), BOTH)
    assert tried == [(BAD.text, FIRST), (GOOD.text, FIRST), (GOOD.text, SECOND)]
    assert [(one.quarantined, one.untried, one.new_trials) for one in ended] == [(0, 0, 2), (1, 0, 1)]
    (entry,) = entries(store.database)
    assert (entry.config, entry.problem, entry.outcome, entry.times) == (BAD.text, FIRST.text, Outcome.CRASHED, 1)
    again, (ended_again,) = searched(store, (SECOND,), BOTH)  # by the next run, too
    assert (again, ended_again.quarantined) == ([], 1)

    never = {key: us for key, us in BOTH.items() if key[0] != BAD.text}
    tried, (retried,) = searched(store, (SECOND,), never, retried=frozenset({Outcome.CRASHED}))  # it counts
    assert (tried, retried.quarantined) == ([(BAD.text, SECOND)], 0)
    (entry,) = entries(store.database)
    assert (entry.times, entry.problem) == (2, SECOND.text)

    assert forgive(store.database, entry.digest[:8], DEVICE) == 1
    third = {(BAD.text, SHAPES[2]): 50.0, (GOOD.text, SHAPES[2]): 200.0}
    tried, (forgiven,) = searched(store, (SHAPES[2],), third)
    assert tried == [(BAD.text, SHAPES[2]), (GOOD.text, SHAPES[2])]
    assert forgiven.winner is not None
    assert (forgiven.quarantined, forgiven.winner.config) == (0, BAD.text)


@pytest.mark.parametrize(
    ("change", "is_left_out"),
    [
        ({}, True),
        ({"device_name": "NVIDIA H100"}, False),
        ({"tools": "0" * 64}, False),
        ({"digest": "0" * 64}, False),
        ({"config": "gemm:x=1"}, False),
        ({"run_limit_seconds": 60.0}, True),
        ({"run_limit_seconds": 59.0}, False),
    ],
)
def test_what_is_left_out(change: dict[str, Any], is_left_out: bool, store: Store) -> None:
    entry = quarantined(TARGET, FIRST, BAD, Outcome.CRASHED, "it faulted")
    store.add_trials(RUN, [], hazards=[replace(entry, **change)])
    held = quarantine.in_force(store.database, TARGET, LIMITS, ())
    assert held.holds(candidate_of(BAD, SECOND, PROFILES["h200"])) is is_left_out
    assert not held.holds(candidate_of(GOOD, SECOND, PROFILES["h200"]))


@pytest.mark.parametrize(("outcome", "hung"), [(Outcome.TIMED_OUT, True), *((one, False) for one in Outcome)])
def test_how_a_trial_ends_decides(store: Store, outcome: Outcome, hung: bool) -> None:
    """A trial that timed out without a hang is of a large problem, or its compiler timed out."""
    trial = stored_trial(BAD, FIRST, 100.0, outcome=outcome, hung=hung, **WITHOUT)
    found = hazards([trial], TARGET)
    assert len(found) == (outcome is Outcome.CRASHED or hung)
    limit = 60.0 if outcome is Outcome.TIMED_OUT else None
    assert all((one.outcome, one.run_limit_seconds) == (outcome, limit) for one in found)
    device = Simulated(store)
    device.refuted[BAD.text] = outcome
    judged(device, store, FIRST, BAD, store.add_trial(RUN, stored_trial(BAD, FIRST, 50.0)), "in full")
    assert bool(entries(store.database)) is (outcome is Outcome.CRASHED)


def test_a_winner_that_faults_in_the_full_verification_is_left_out(store: Store) -> None:
    times = BOTH | {(BAD.text, FIRST): 50.0}
    _, (ended,) = searched(store, (FIRST,), times, faulting=[BAD.text])
    assert ended.winner is not None
    assert ended.winner.config == GOOD.text
    tried, _ = searched(store, (SECOND,), BOTH)
    assert tried == [(GOOD.text, SECOND)]


SPLIT = StreamAFmaConfig(64, 1, 2, 4, 2, splits=3, row_tiles=1, min_blocks=1)


@pytest.mark.parametrize(
    ("config", "problem", "is_same"),
    [
        (SPLIT, Problem(200, 5, 4000, "f32"), True),
        (SPLIT, Problem(100, 3, 40, "f64"), False),
        (SPLIT, Problem(100_000, 3, 40_000, "f32"), False),  # an index of 64 bits
        (replace(SPLIT, splits=5), Problem(100, 3, 40, "f32"), False),  # another launch of the same text
    ],
)
def test_a_kernel_is_its_code_its_definitions_and_its_launch(
    config: KernelConfig, problem: Problem, is_same: bool
) -> None:
    first = kernel_digest(render(Problem(100, 3, 40, "f32"), SPLIT))
    assert (kernel_digest(render(problem, config)) == first) is is_same


def test_another_driver_or_compiler_ends_it() -> None:
    others = {"driver": "590.1", "toolkit": "nvcc 13.1", "flags": "-arch=sm_100", "uuid": "other"}
    changes: list[dict[str, Any]] = [{}, *({name: value} for name, value in others.items())]
    compiler: Any = SimpleNamespace(extra_digest="")
    targets = [Target("0", H200, replace(RUN.identity, **change), compiler) for change in changes]
    assert len({one.tools for one in targets}) == 4


def test_what_is_forgotten_is_forgiven(store: Store) -> None:
    bad, good = (store.add_trial(RUN, one) for one in failed_and_right())
    store.add_trials(RUN, [], hazards=hazards(failed_and_right(), TARGET))
    store.forget([good], [], lambda _: None)
    assert len(entries(store.database)) == 1
    store.forget([bad], [], lambda _: None)
    assert entries(store.database) == []


def test_a_trial_and_its_quarantine_are_stored_together(store: Store, path: Path) -> None:
    plain_sql(path, "DROP TABLE quarantine")
    with pytest.raises(StoreError):
        store.add_trials(RUN, failed_and_right(), hazards=hazards(failed_and_right(), TARGET))
    assert plain_sql(path, "SELECT count(*) FROM trial") == [(0,)]


@pytest.fixture
def filled(store: Store, path: Path) -> Path:
    """A database with the same kernel twice, on two devices, and another one."""
    store.add_trials(RUN, failed_and_right())
    entry = quarantined(TARGET, FIRST, BAD, Outcome.CRASHED, "an illegal address\nin detail")
    other = quarantined(TARGET, FIRST, GOOD, Outcome.TIMED_OUT, "a first look took more than 60 s", 60.0)
    store.add_trials(RUN, [], hazards=[entry, entry, replace(entry, device_name="NVIDIA H100"), other])
    return path


def test_the_list(filled: Path) -> None:
    rows = json.loads(run("quarantine", "--db", str(filled), "--json").output)
    assert sorted((row["device_name"], row["outcome"], row["times"], row["run_limit_seconds"]) for row in rows) == [
        ("NVIDIA H100", "crashed", 1, None),
        (DEVICE, "crashed", 2, None),
        (DEVICE, "timed-out", 1, 60.0),
    ]
    table = run("quarantine", "--db", str(filled), "--device", DEVICE).output
    assert all((row["digest"][:12] in table) for row in rows)
    assert "an illegal address" in table
    assert "H100" not in table


@pytest.mark.parametrize(
    ("arguments", "left"), [("all", 0), (f"all --device '{DEVICE}'", 1), ("BAD", 1), (f"BAD --device '{DEVICE}'", 2)]
)
def test_what_is_forgiven_is_removed(arguments: str, left: int, filled: Path, store: Store) -> None:
    named = shlex.split(arguments.replace("BAD", kernel_digest(render(FIRST, BAD))[:10].upper()))
    found = completed("quarantine", "--db", str(filled), "--forgive", *named)
    assert found.output.startswith(f"released: {3 - left} ")
    assert len(json.loads(run("quarantine", "--db", str(filled), "--json").output)) == left
    if left == 0:
        assert run("quarantine", "--db", str(filled)).output == "no kernel is quarantined\n"
        with pytest.raises(InputError):
            forgive(store.database, "0" * 8, None)


def test_a_run_says_how_many_were_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    for count in (0, 3):
        print_quarantined(count, "my results.db")
    assert capsys.readouterr().err == "3 quarantined: `tsm2-tune quarantine --db 'my results.db'` lists them\n"


# Winners that are timed again

A, B, C, D, *_ = KERNELS
MEASURED = "SELECT id, trial_id, round, median_us FROM measurement ORDER BY id"


def confirmed(
    store: Store, before: dict[Any, float], now: dict[Any, float], **changes: Any
) -> tuple[Confirmed, Simulated]:
    """Confirm kernels that took the times `before` and now take others when they are timed in turns."""
    for config, us in before.items():
        store.add_trial(RUN, stored_trial(config, FIRST, us))
    then, again = ({(config.text, FIRST): us for config, us in each.items()} for each in (before, now))
    tuner = Simulated(store, then, again)
    for name, value in changes.items():
        setattr(tuner, name, value)
    events = list(confirmations(store.best(device=DEVICE), tuner, store))
    assert isinstance(events[-1], Confirmed)
    return events[-1], tuner


def test_a_winner_that_wins_again_is_kept(store: Store, path: Path) -> None:
    found, tuner = confirmed(store, {A: 100.0, B: 103.0, C: 150.0}, {A: 101.0, B: 104.0})
    assert found.is_kept
    assert found.drift == pytest.approx(0.01)
    assert found.spread == pytest.approx(0.1 / 100 + 0.1 / 101, rel=0.1)
    assert str(found) == f"{FIRST.text}: kept: {A.text} 100.0 us, now 101.0 us (+1.0 %, spread 0.2 %)"
    assert tuner.rounds == [(FIRST, frozenset((A.text, B.text)))]
    assert tuner.in_full == [(A.text, FIRST), (B.text, FIRST)]
    before = plain_sql(path, MEASURED)
    again = Simulated(store, {(A.text, FIRST): 102.0, (B.text, FIRST): 104.0})
    list(confirmations(store.best(device=DEVICE), again, store))
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
    assert str(found).startswith(f"{FIRST.text}: {change or 'kept'}: ")


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
    assert (C.text, FIRST) in tuner.in_full


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
    assert tuner.rounds == [(FIRST, frozenset((B.text, C.text)))]
    tried = store.history(DEVICE, FIRST, ("tsm2",), TODAY).tried()
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
    store.add_trial(RUN, stored_trial(A, FIRST, 100.0, basis="another compiler"))
    tuner = Simulated(store, {})
    (found,) = confirmations(store.best(device=DEVICE), tuner, store)
    assert isinstance(found, Confirmed)
    assert (found.is_kept, found.trouble, tuner.rounds) == (False, CHANGED, [])


@pytest.mark.parametrize("was_there", [True, False])
def test_the_vendor_is_timed_where_it_was_beside(store: Store, was_there: bool) -> None:
    times = {(A.text, FIRST): 100.0, (B.text, FIRST): 103.0}
    for config in (A, B):
        store.add_trial(RUN, stored_trial(config, FIRST, times[config.text, FIRST]))
    tuner = Simulated(store, times)
    tuner.options = Options(vendor=was_there)
    before = tuner.final(FIRST, problem_session(FIRST, ("tsm2",), tuner, store, "").prior)
    assert isinstance(before, Final)
    store.add_final(RUN, before, ("tsm2",), TODAY)
    tuner.options = Options(vendor=True)
    events = list(confirmations(store.best(device=DEVICE), tuner, store))
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
    store.add_trial(RUN, stored_trial(A, FIRST, 100.0))
    for device, said in (
        ((), "has no winner for this selection on this device"),
        (("--device", DEVICE), "is not in this machine: run this on the machine that has it"),
        (("--device", "\uff10"), "no trial of the device '\uff10' in"),
    ):
        assert said in refused("confirm", *device, path=path)
