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
from benchmarks.recorded_spaces import FILE, rows_in, rows_of, space_of
from benchmarks.redraw import REGRET
from tests.call_log import logged
from tests.fabricated import (
    BASIS,
    GPU,
    configuration,
    final,
    trial,
    tuning_run,
)
from tsm2_tune.errors import InputError
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.generator.space.space import search_space
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.runs.leases import Leases
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


def test_times_in_two_databases_are_compared_by_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    slim, wide, third = configuration(64), configuration(128), configuration(256)
    other = Problem(1000, 4, 2000, "f64")

    def written(name: str, times: dict[Any, float], winner: float, device: str = GPU, **facts: Any) -> None:
        run = tuning_run(device, uuid=name)
        with Store.open(name, create=True) as store:
            for config, us in times.items():
                store.add_trial(run, trial(us, config, **facts))
            store.add_trial(run, trial(5.0, slim, problem=other, **facts))
            store.add_final(run, final((slim, winner)), (slim.family,), BASIS)
            assert {row["device"] for row in rows_of(store)} == {device}

    def said(*arguments: str, status: int = 0) -> list[str]:
        ended = CliRunner().invoke(repeated.main, arguments)
        assert ended.exit_code == status, ended.output
        return ended.output.splitlines()

    written("a.db", {slim: 100.0, wide: 200.0}, 99.0)
    written("b.db", {slim: 103.0, third: 120.0}, 100.5)
    written("c.db", {slim: 100.0}, 99.0, device="another GPU")
    lines = said("a.db", "b.db", "--output", "found.json")
    assert lines[0] == f"{GPU}, two cards: 1 of 1 winners are the same."
    trials = [line.split("|")[2:7] for line in lines[4:8]]
    assert [[cell.strip() for cell in line] for line in (trials[1], trials[3])] == [
        ["0", "", "", "", ""], ["2", "1.002", "1.015", "1.028", "50.0 %"],
    ]  # fmt: skip
    assert lines[8] == "| winners | 1 | 1.015 | 1.015 | 1.015 | 0.0 % | 100.0 % | 100.0 % |"
    assert said("--table", "found.json") == lines
    assert said("b.db", "a.db")[-1] == "| winners | 1 | 0.985 | 0.985 | 0.985 | 0.0 % | 100.0 % | 100.0 % |"
    assert "no trial in common" in said("a.db", "c.db", status=2)[0]


# What a run costs

PARENTS = ("--parents", "2", "--gpus-per-node", "2")


@pytest.mark.usefixtures("toolchain", "session_cache")
def test_rates_of_a_new_file_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("MANY", 1000), ("READS", 1), ("ROUNDS", 1), ("OF_PROBLEM", 20)):
        monkeypatch.setattr(scale_rates, name, value)
    monkeypatch.setattr(scale_facts, "HOST_SHAPES", ("16x1x16",))
    monkeypatch.setattr(scale_facts, "HOST_TRIALS", 1)
    output = tmp_path / "rates.json"
    ended = CliRunner().invoke(scale_rates.main, [*PARENTS, "--seconds", "4", "--output", str(output)])
    assert ended.exit_code == 0, ended.output
    found, before = (json.loads(path.read_text()) for path in (output, scale.SQLITE))
    # The recorded rates contain claims of configurations, by processes that stored the trials of one GPU each.
    assert found.keys() - {"gpus_per_node"} == before.keys() - {"claimed"}
    assert found["recorded"] == pytest.approx(before["recorded"])  # SQLite sums in another order from 3.43 on
    assert found["rows"][0]["trials_per_second"] > 0
    assert found["tables"]["sample"]["rows"] > found["tables"]["trial"]["rows"] >= 40
    assert (found["asked"]["winners"] >= 1, found["reads"][-1]["trials"] >= 1000) == (True, True)


def test_each_gpu_of_a_parent_stores_problems_that_are_leased(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, list[Problem]] = {"take": [], "release": []}
    for method, problems in asked.items():
        own = getattr(Leases, method)
        counted = lambda self, one, own=own, problems=problems: logged(problems, one, own(self, one))  # noqa: E731
        monkeypatch.setattr(Leases, method, counted)
    monkeypatch.setattr(scale_rates, "OF_PROBLEM", 4)
    db = str(tmp_path / "results.db")
    found = scale_rates.written(db, 3, 2, 1.0)
    stored = {
        (m, k) for m, k in scale_facts.rows_of(db, "SELECT m, k FROM problem JOIN trial ON problem_id = problem.id")
    }
    assert {m for m, _ in stored} == {4096 + 6, 4096 + 7}
    assert stored <= {(one.m, one.k) for one in asked["take"]}
    assert set(asked["release"]) <= set(asked["take"])
    assert found.trials == scale_facts.trials(db)
    writes = found.trials / scale_rates.TOGETHER + len(asked["take"]) + len(asked["release"])
    assert found.transactions == writes


@pytest.mark.parametrize("devices", [0, 2])
def test_cost_of_a_parent_is_measured(devices: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rendered = list[str]()  # by this process
    monkeypatch.setattr(loop, "render", lambda *of: logged(rendered, of[1].text, render(*of)))
    problem, db = Problem(20480, 16, 20480, "f32"), tmp_path / "results.db"
    found = parent_cost.cost(problem, 20, str(db), devices=devices, rate=100.0)
    assert 0.0 < found.trial_milliseconds < 1000.0
    assert 0.0 < found.planning_seconds < 100.0
    assert scale_facts.trials(str(db)) == 20 * max(1, devices)
    assert len(rendered) >= 20 if devices == 0 else not rendered


PRINTING = """
import json, os, pathlib, sys, time
if sys.argv[1] == 'export': pathlib.Path(sys.argv[-1]).touch(); sys.exit()
cache, db = pathlib.Path(os.environ['XDG_CACHE_HOME'], 'kernel'), pathlib.Path(sys.argv[-1])
assert not db.exists(); db.touch()
for event in ('run_started', 'trial', 'other', 'trial'):
    print(json.dumps({'event': event, 'device': str(cache.exists())}), flush=True); time.sleep(0.2)
cache.touch()
"""
FAILING = "import sys; print('no GPU today', file=sys.stderr); sys.exit(3)"
FIRST = ("--device", "cpu", "--shapes", "16x1x16", "--budget", "0.1")


@pytest.mark.usefixtures("session_cache")
@pytest.mark.slow
def test_a_first_kernel_is_timed_from_the_command_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def said(*program: str) -> Any:
        monkeypatch.setattr(first_kernel, "PROGRAM", (sys.executable, *program))
        return CliRunner().invoke(first_kernel.main, FIRST)

    failed = said("-c", FAILING)
    assert (failed.exit_code, "status 3: no GPU today" in failed.output) == (1, True)
    (tmp_path / "program.py").write_text(PRINTING)
    result = json.loads(said(str(tmp_path / "program.py")).output)
    assert result["device"] == "True"  # the last run's, whose cache the first one filled
    for seconds in result["seconds"].values():
        assert list(seconds) == ["run_started", "first_trial", first_kernel.EXPORTED]
        assert seconds["first_trial"] + 0.5 < seconds[first_kernel.EXPORTED]
    monkeypatch.setattr(first_kernel, "PROGRAM", (sys.executable, "-m", "tests.quick_command"))
    seconds, facts = first_kernel.measured(FIRST, tmp_path, Path(os.environ["XDG_CACHE_HOME"]))
    assert facts["device"].startswith("cpu ")
    assert list(seconds) == [*first_kernel.STAGES.values(), first_kernel.EXPORTED]
    assert list(seconds.values()) == sorted(seconds.values())
