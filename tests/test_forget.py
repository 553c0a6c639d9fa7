"""Trials that are not to stand: forgotten with all that is theirs alone, or tried again in their place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.command import TUNE, completed, refused, run
from tests.databases import C128, C256, C512
from tests.fabricated import BASIS, configuration, final, plain_sql, trial, tuning_run
from tests.on_host import ON_HOST
from tsm2_tune.errors import InputError
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Outcome, TimeLimits
from tsm2_tune.tuner.search.resume import Retries
from tsm2_tune.tuner.worker.client import AttemptResult, Worker

pytestmark = pytest.mark.slow

RUN, LATER = tuning_run(), tuning_run(started_at="2026-02-02T00:00:00+00:00")
ELSEWHERE = tuning_run("NVIDIA H100", started_at="2026-02-02T00:00:00+00:00")
FAILED: dict[str, Any] = {"verdict": None, "measurement": None, "resources": None}
TABLES = ("trial", "measurement", "sample", "source", "problem", "run")


def counts(path: Path) -> list[int]:
    return [int(str(plain_sql(path, f"SELECT count(*) FROM {table}")[0][0])) for table in TABLES]


@pytest.fixture
def filled(store: Store, path: Path) -> Path:
    """Two that are right and were in a final, one that crashed, and one that timed out on another card."""
    store.add_trial(RUN, trial(500, C128))
    store.add_trial(RUN, trial(510, C256))
    store.add_final(RUN, final((C128, 500), (C256, 510)), ("tsm2",), BASIS)
    store.add_trial(RUN, trial(0, C512, outcome=Outcome.CRASHED, **FAILED))
    late = trial(0, C512, outcome=Outcome.TIMED_OUT, problem=Problem(1, 1, 1, "f64"), **FAILED)
    store.add_trial(ELSEWHERE, late)
    assert counts(path) == [4, 4, 12, 4, 2, 2]
    return path


@pytest.mark.parametrize(
    ("arguments", "told", "left"),
    [
        (("3",), "1 trial of DB: 1 crashed", [3, 4, 12, 3, 2, 2]),
        (("1", "1"), "1 trial of DB: 1 ok", [3, 2, 6, 3, 2, 2]),
        (("--outcome", "timed-out"), "1 trial of DB: 1 timed-out", [3, 4, 12, 3, 1, 1]),
        (("--outcome", "failed"), "2 trials of DB: 1 crashed, 1 timed-out", [2, 4, 12, 2, 1, 1]),
        (("--outcome", "ok, crashed", "4"), "4 trials of DB: 1 crashed, 2 ok, 1 timed-out", [0] * 6),
        (("--device", "h200"), "3 trials of DB on NVIDIA H200: 1 crashed, 2 ok", [1, 0, 0, 1, 1, 1]),
        (
            ("--device", "h100", "--outcome", "failed"),
            "1 trial of DB on NVIDIA H100: 1 timed-out",
            [3, 4, 12, 3, 1, 1],
        ),
        (
            ("--device", "h100", "--outcome", "ok"),
            "0 trials of DB on NVIDIA H100: none ended so",
            [4, 4, 12, 4, 2, 2],
        ),
        (("--outcome", "wrong-result"), "0 trials of DB: none ended so", [4, 4, 12, 4, 2, 2]),
    ],
)
def test_what_is_forgotten_leaves_nothing(
    arguments: tuple[str, ...], told: str, left: list[int], filled: Path
) -> None:
    result = run("forget", *arguments, "--db", str(filled))
    assert (result.exit_code, result.output) == (0, f"forgetting {told.replace('DB', str(filled))}\n")
    assert counts(filled) == left
    assert plain_sql(filled, "PRAGMA foreign_key_check") == []


def test_a_trial_whose_outcome_is_no_text_is_forgotten(filled: Path) -> None:
    plain_sql(filled, "UPDATE trial SET outcome = x'ff00' WHERE id = 3")
    result = run("forget", "3", "--db", str(filled))
    assert (result.exit_code, result.output) == (0, f"forgetting 1 trial of {filled}: 1 {bytes([255, 0])!r}\n")
    assert counts(filled) == [3, 4, 12, 3, 2, 2]
    assert "no problem" not in refused("forget", "3", path=filled)


def test_nothing_is_forgotten_that_was_not_named(filled: Path) -> None:
    def unwritten(_: object) -> None:
        raise BrokenPipeError

    with Store.open(filled, create=False) as store, pytest.raises(BrokenPipeError):
        store.forget([1], [], unwritten)
    several = "the device 'nvidia' may be 'NVIDIA H100' or 'NVIDIA H200' in"
    assert several in refused("forget", "--device", "nvidia", path=filled)
    assert counts(filled) == [4, 4, 12, 4, 2, 2]


def test_thousands_are_forgotten_at_once(store: Store, path: Path) -> None:
    trials = [trial(500, configuration(prefetch=number)) for number in range(1, 1101)]
    numbers = [kept.trial_id for kept in store.add_trials(RUN, trials)]
    store.forget(numbers, [], lambda _: None)
    assert counts(path) == [0] * 6
    with pytest.raises(InputError, match="no trial 1 in"):
        store.forget([1], [], lambda _: None)


# In their place


def test_only_a_retried_trial_gives_its_place(store: Store, path: Path) -> None:
    crashed = trial(0, C128, outcome=Outcome.CRASHED, total_seconds=3.5, **FAILED)
    number = store.add_trial(RUN, crashed)
    right = trial(500, C128, total_seconds=2.0)
    limits = TimeLimits(1.0, 1.0)
    assert store.add_trial(LATER, right, Retries(limits)) == number
    assert store.add_trial(LATER, right, Retries(limits, frozenset({(number, 3.0)}))) == number
    assert store.trial(number).trial.outcome is Outcome.CRASHED
    assert store.add_trial(LATER, right, Retries(limits, frozenset({(number, 3.5)}))) == number
    record = store.trial(number)
    assert (record.trial, record.run, len(record.rounds)) == (right, LATER, 1)
    assert record.trial.total_seconds == 2.0  # the retried trial is as before
    assert store.add_trial(LATER, crashed, Retries(limits, frozenset({(number, 3.5)}))) == number
    assert store.trial(number).trial.outcome is Outcome.OK


def test_measurements_are_forgotten_with_their_trial(store: Store, path: Path) -> None:
    """Only files from elsewhere have such."""
    number = store.add_trial(RUN, trial(500, C128, outcome=Outcome.CRASHED))
    again = Retries(None, frozenset({(number, 3.0)}))
    assert store.add_trial(LATER, trial(400, C128), again) == number
    assert [row.median_us for row in store.best()] == [400]
    assert counts(path)[:3] == [1, 1, 3]
    number = store.add_trial(RUN, trial(0, C256, outcome=Outcome.INTERRUPTED, **FAILED))
    assert store.add_trial(LATER, trial(500, C256), Retries(None)) == number
    assert store.trial(number).trial.outcome is Outcome.OK


class TestCommand:
    pytestmark = ON_HOST

    @pytest.mark.usefixtures("known_ceilings")
    def test_failures_are_tried_again_where_asked_for(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        command = (*TUNE, "--db", str(path))
        with monkeypatch.context() as patch:
            patch.setattr(Worker, "attempt", lambda *_: AttemptResult(Outcome.CRASHED, "a fault"))
            for retry, new_trials in (((), 1), ((), 0), (("--retry", "failed"), 1), (("--retry", "timed-out"), 0)):
                result = run(*command, *retry)
                assert result.exit_code == 1
                assert f"({new_trials} new trial" in result.output
        plain_sql(path, "UPDATE trial SET total_seconds = 1e6")  # a spent budget is no obstacle
        assert "(0 new trials" in run(*command).output
        result = completed(*command, "--retry", "compile-failed,crashed")
        assert "(1 new trial" in result.output
        assert plain_sql(path, "SELECT outcome, total_seconds < 1e6 FROM trial") == [("ok", 1)]
        assert "(0 new trials" in run(*command, "--retry", "failed").output
