"""Tests of the benchmarks of searches: replays, times in two databases, and what a run costs."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks import (
    first_kernel,
    parent_cost,
    regret,
    repeated,
    scale,
    scale_facts,
    scale_rates,
)  # fmt: skip
from benchmarks.recorded_spaces import FILE, rows_in, space_of
from benchmarks.redraw import REGRET
from benchmarks.regret import WITHIN, fastest, replayed, strategies
from tests.fabricated import (
    BASIS,
    GPU,
    configuration,
    final,
    trial,
    tuning_run,
)
from tests.standing_in import Spied
from tsm2_tune.errors import InputError
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.space import search_space
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.search import loop
from tsm2_tune.tuner.search.candidates import Why
from tsm2_tune.tuner.search.strategies import exhaustive
from tsm2_tune.tuner.search.strategies.strategy import InOrder

PROBLEM = Problem(1000, 8, 8, "f64")
KEPT = search_space(PROBLEM, PROFILES["h100"], families=["resident_b_fma"]).kept
US = [100.0 - place % 50 for place in range(len(KEPT))]


def row_of_space(**changes: Any) -> dict[str, Any]:
    """A recorded space in which the fastest are 51 us."""
    trials = [[one.config.text, "ok", us] for one, us in zip(KEPT, US, strict=True)]
    return {"device": "NVIDIA H100 80GB HBM3", "problem": PROBLEM.text, "trials": trials, **changes}


@pytest.mark.slow
def test_a_search_has_the_recorded_times() -> None:
    of = space_of(row_of_space())
    assert (of.space.families, of.trials, of.best_us) == (("resident_b_fma",), len(KEPT), 51.0)
    found = regret.replayed(exhaustive(of.space), of, most=60)
    assert list(found.best_us) == [min(US[: count + 1]) for count in range(60)]
    assert (found.why, found.regret(of, 60)) == (Why.MAX_TRIALS, 0.0)
    assert found.regret(of, 1) == pytest.approx(100 / 51 - 1)
    trials = row_of_space()["trials"]
    few = space_of(row_of_space(trials=trials[5:]))  # what was not recorded is passed over
    assert len(regret.replayed(exhaustive(few.space), few).best_us) == few.trials == len(KEPT) - 5
    trials[:2] = [trials[0][0], "behind", 60.0], [trials[1][0], "wrong-result", None]
    of = space_of(row_of_space(trials=trials))  # behind trials may win in another order, but wrong ones not
    assert list(regret.replayed(exhaustive(of.space), of, most=2).best_us) == [60.0, 60.0]
    assert regret.replayed(InOrder([KEPT[1]]), of).best_us == [math.inf]
    with pytest.raises(InputError, match="no bundled card is 'cpu'"):
        space_of(row_of_space(device="cpu"))


@pytest.mark.slow
def test_the_tables_are_of_the_spaces_as_they_are_now() -> None:
    """A rule that drops or keeps other configurations asks for the tables anew: python -m benchmarks.regret."""
    drawn = {row["problem"]: row["trials"] for row in json.loads(REGRET.read_text(encoding="utf-8"))["rows"]}
    assert drawn == {(of := space_of(row)).problem.text: of.trials for row in rows_in(FILE)}


def test_times_in_two_databases_are_compared_by_pairs(tmp_path: Path) -> None:
    slim, wide, third = configuration(64), configuration(128), configuration(256)

    def written(name: str, times: dict[Any, float], winner: float) -> str:
        run, path = tuning_run(uuid=name), tmp_path / name
        with Store.open(path, create=True) as store:
            for config, us in times.items():
                store.add_trial(run, trial(us, config))
            store.add_final(run, final((slim, winner)), (slim.family,), BASIS)
        return str(path)

    def said(*arguments: str) -> list[str]:
        ended = CliRunner().invoke(repeated.main, arguments)
        assert ended.exit_code == 0, ended.output
        return ended.output.splitlines()

    first, second = (
        written("a.db", {slim: 100.0, wide: 200.0}, 99.0),
        written("b.db", {slim: 103.0, third: 120.0}, 100.5),
    )
    lines = said(first, second, "--output", str(tmp_path / "found.json"))
    assert lines[0] == f"{GPU}, two cards: 1 of 1 winners are the same."
    assert lines[8] == "| winners | 1 | 1.015 | 1.015 | 1.015 | 0.0 % | 100.0 % | 100.0 % |"
    assert said("--table", str(tmp_path / "found.json")) == lines


# What a run costs

PARENTS = ("--parents", "2", "--gpus-per-node", "2")


@pytest.mark.usefixtures("toolchain", "session_cache")
def test_rates_of_a_new_file_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = {"rates.MANY": 1000, "rates.READS": 1, "rates.ROUNDS": 1, "rates.OF_PROBLEM": 20,
           "facts.HOST_SHAPES": ("16x1x16",), "facts.HOST_TRIALS": 1}  # fmt: skip
    for name, value in few.items():
        monkeypatch.setattr(f"benchmarks.scale_{name}", value)
    output = tmp_path / "rates.json"
    ended = CliRunner().invoke(scale_rates.main, [*PARENTS, "--seconds", "1", "--output", str(output)])
    assert ended.exit_code == 0, ended.output
    found, before = (json.loads(path.read_text()) for path in (output, scale.SQLITE))
    # The recorded rates contain claims of configurations, by processes that stored the trials of one GPU each.
    assert found.keys() - {"gpus_per_node"} == before.keys() - {"claimed"}
    assert found["recorded"] == pytest.approx(before["recorded"])  # SQLite sums in another order from 3.43 on
    assert found["rows"][0]["trials_per_second"] > 0
    assert found["tables"]["sample"]["rows"] > found["tables"]["trial"]["rows"] >= 40
    assert (found["asked"]["winners"] >= 1, found["reads"][-1]["trials"] >= 1000) == (True, True)


@pytest.mark.parametrize("devices", [0, 2])
def test_cost_of_a_parent_is_measured(devices: int, tmp_path: Path, spied: Spied) -> None:
    rendered = spied(loop, "render")  # by this process
    problem, db = Problem(20480, 16, 20480, "f32"), tmp_path / "results.db"
    found = parent_cost.cost(problem, 20, str(db), devices=devices, rate=100.0)
    assert 0.0 < found.trial_milliseconds < 1000.0
    assert 0.0 < found.planning_seconds < 100.0
    assert scale_facts.trials(str(db)) == 20 * max(1, devices)
    assert len(rendered) >= 20 if devices == 0 else not rendered


FIRST = ("--device", "cpu", "--shapes", "16x1x16", "--budget", "0.1")


@pytest.mark.usefixtures("session_cache")
@pytest.mark.slow
def test_a_first_kernel_is_timed_from_the_command_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_kernel, "PROGRAM", (sys.executable, "-m", "tests.quick_command"))
    seconds, facts = first_kernel.measured(FIRST, tmp_path, Path(os.environ["XDG_CACHE_HOME"]))
    assert facts["device"].startswith("cpu ")
    assert list(seconds) == [*first_kernel.STAGES.values(), first_kernel.EXPORTED]
    assert list(seconds.values()) == sorted(seconds.values())


# What docs/regret.md promises of the default strategy


# Three element types and two ops. The order of the model alone, or of first choices alone, does worse on them.
SPACES = ("8x8x10000000:f64:tn", "4096x8x4096:f32", "2000000x8x8:c64")
TENTH = 0.1
# With all that the package brings; of other shapes alone, as for a new shape; and with a database of one's own.
KNOWING = ("model", "model, other shapes", "model, own database alone")


@pytest.mark.parametrize("text", SPACES)
def test_a_tenth_of_the_trials_finds_98_percent_of_the_speed(text: str) -> None:
    rows = {row["problem"]: row for row in rows_in(FILE)}
    of = space_of(rows[text])
    alike = [fastest(row) for row in rows.values()]
    known = [one for one in alike if one.problem != of.problem and one.problem.dtype_name == of.problem.dtype_name]
    made, trials = strategies(of, known), round(TENTH * of.trials)
    regrets = {name: replayed(made[name](0), of, most=trials).regret(of, trials) for name in KNOWING}
    assert {name: regret for name, regret in regrets.items() if not 0 <= regret <= WITHIN} == {}
