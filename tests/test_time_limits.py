"""Tests that a timed-out trial is tried again under larger limits, and then replaced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.command import TUNE, run
from tests.fabricated import BASIS, PROBLEM, plain_sql, trial, tuning_run
from tests.on_host import has_compiler
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Outcome, TimeLimits
from tsm2_tune.tuner.worker.client import AttemptResult, Worker

RUN = tuning_run()
LATE: dict[str, Any] = {"outcome": Outcome.TIMED_OUT, "verdict": None, "measurement": None, "resources": None}
SHORT, LONG = TimeLimits(120.0, 10.0), TimeLimits(120.0, 60.0)


@pytest.mark.host
@pytest.mark.usefixtures("session_cache", "known_ceilings")
@pytest.mark.skipif(not has_compiler(), reason="no C++ compiler")
@pytest.mark.parametrize("limit", ["--run-limit", "--compile-limit"])
def test_a_larger_limit_tries_again_what_timed_out(
    limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "results.db"
    command = (*TUNE, "--db", str(path), limit)
    trials = "SELECT outcome, total_seconds > 100, compile_limit_seconds, run_limit_seconds FROM trial"
    with monkeypatch.context() as patch:
        late = AttemptResult(Outcome.TIMED_OUT, "verification took too long")
        patch.setattr(Worker, "attempt", lambda *_: late)
        for seconds, new_trials in ((40, 1), (39, 0), (50, 1)):
            result = run(*command, str(seconds))
            assert result.exit_code == 1
            assert f"no configuration ended within the time limit ({new_trials} new trial" in result.output
        seconds_before = plain_sql(path, "SELECT total_seconds FROM trial")
        plain_sql(path, "UPDATE trial SET total_seconds = total_seconds + 100")
    result = run(*command, "55")
    assert result.exit_code == 0, result.output
    assert "(1 new trial" in result.output
    limits = (55.0, 60.0) if limit == "--compile-limit" else (120.0, 55.0)
    assert plain_sql(path, trials) == [("ok", 1, *limits)]
    assert plain_sql(path, "SELECT total_seconds FROM trial")[0] > (seconds_before[0][0],)
    assert "(0 new trials" in run(*command, "70").output  # trials that ended in time stay


def test_who_was_first_stays_unless_it_timed_out_under_less(store: Store, path: Path) -> None:
    first = store.add_trial(RUN, trial(limits=SHORT, detail="first", **LATE))
    later = tuning_run(started_at="2026-02-02T00:00:00+00:00")
    assert store.add_trial(later, trial(500, limits=SHORT)) == first
    assert store.trial(first).trial.detail == "first"
    assert store.add_trial(later, trial(500, limits=LONG)) == first
    record = store.trial(first)
    assert (record.trial.outcome, record.trial.limits, record.run) == (Outcome.OK, LONG, later)
    assert record.trial.total_seconds == 6  # three seconds twice
    assert [row.median_us for row in store.best()] == [500]
    assert store.add_trial(later, trial(limits=TimeLimits(999.0, 999.0), **LATE)) == first
    assert store.trial(first).trial.outcome is Outcome.OK
    assert plain_sql(path, "SELECT count(*) FROM sample") == [(3,)]


def test_limits_that_take_turns_end(store: Store) -> None:
    """A larger limit for one stage and a smaller one for the other try it again, and once more, and then no more."""
    both = (TimeLimits(120.0, 60.0), TimeLimits(1.0, 100.0))
    for limits in (*both, both[0]):
        late = trial(outcome=Outcome.TIMED_OUT, verdict=None, measurement=None, limits=limits)
        trial_id = store.add_trial(RUN, late)
    (stored,) = store.history(RUN.identity.name, PROBLEM, ("tsm2",), BASIS).tried()
    assert (stored.id, stored.limits) == (trial_id, TimeLimits(120.0, 100.0))
    assert not any(limits.exceed(stored.limits) for limits in both)


def test_limits_exceed_others_by_either() -> None:
    assert LONG.exceed(SHORT)
    assert not SHORT.exceed(LONG)
    assert not LONG.exceed(LONG)
    assert TimeLimits(121.0, 1.0).exceed(LONG)
