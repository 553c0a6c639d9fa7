"""By which strategy a search tried a trial: stored, shown, exported, imported, and checked as data from anywhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tsm2_tune
from tests.command import run
from tests.fabricated import BASIS, GPU, PROBLEM, configuration, downgrade, plain_sql, trial, tuning_run
from tests.simulated import DEVICE, SHAPES, TARGET, Simulated
from tsm2_tune.generator.space.space import SearchSpace
from tsm2_tune.html import trial_list as page
from tsm2_tune.html.contents import contents
from tsm2_tune.tuner.results.merge.serializer import LINES, LINES_OF_2, TIME_OF_3
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.runs.problem_queue import tune_problems
from tsm2_tune.tuner.search.fixed_list import candidate_of
from tsm2_tune.tuner.search.strategies import exhaustive

RUN, H200 = tuning_run(), TARGET.limits
STORED = "SELECT strategy FROM trial"
OF_SPACE = "SELECT space_configurations, search_ended FROM trial"


@pytest.fixture
def stored(path: Path) -> Path:
    with Store.open(path, create=True) as store:
        store.add_trial(RUN, trial(500, strategy="optuna:tpe"))
    return path


def test_a_search_stores_its_strategy_and_what_is_no_search_none(store: Store, path: Path) -> None:
    config = configuration()
    for problem, make_strategy in ((SHAPES[0], None), (SHAPES[1], exhaustive)):
        space = SearchSpace(problem, H200, ("tsm2",), [candidate_of(config, problem, H200)], (), ())
        device = Simulated(store, {(config.text, problem): 100.0}, strategy="random")
        list(tune_problems([space], device, store, make_strategy=make_strategy))
    found = {row.problem: row.strategy for row in store.best(device=DEVICE)}
    assert found == {SHAPES[0]: "random", SHAPES[1]: None}
    assert plain_sql(path, f"{OF_SPACE} ORDER BY id") == [(1, "all tried"), (None, None)]


def test_exports_show_and_the_report_tell_it_where_it_is_known(stored: Path) -> None:
    exported = tsm2_tune.export(stored, format="json").text
    assert [row["strategy"] for row in json.loads(exported or "")["best"]] == ["optuna:tpe"]
    assert json.loads(run("show", "1", "--json", "--db", str(stored)).stdout)["strategy"] == "optuna:tpe"

    def rows() -> list[dict[str, object]]:
        with Store.open(stored, create=False) as store:
            return page.listed(contents(store, None, lambda problem: True, None).trials)[0]

    known = rows()
    assert [row["strategy"] for row in known] == ["optuna:tpe"]
    assert "strategy" in page.heads(known)
    plain_sql(stored, "UPDATE trial SET strategy = NULL")
    assert "strategy" not in page.heads(rows())


def test_a_text_of_trials_carries_it_and_one_of_before_has_none(stored: Path, tmp_path: Path) -> None:
    written, new, older = tmp_path / "trials.jsonl", tmp_path / "new.db", tmp_path / "older.db"
    tsm2_tune.export(stored, format="trials", output=written)
    tsm2_tune.import_trials(written, new)
    assert plain_sql(new, STORED) == [("optuna:tpe",)]

    lines = [json.loads(line) for line in written.read_text(encoding="utf-8").splitlines()]
    lines[0] |= {"tsm2-tune trials": 2, "lines": LINES_OF_2, "times": TIME_OF_3}
    lines = [lines[0], *(line for line in lines[1:] if line[0] in ("tools", "run", "trial"))]
    for line in lines[1:]:
        if line[0] == "trial":
            for name in ("verified_code", "strategy", "stamp", "basis"):
                del line[1 + LINES["trial"].index(name)]
            line[-1][0][0] = 0
    written.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    tsm2_tune.import_trials(written, older)
    assert plain_sql(older, STORED) == [(None,)]
    tsm2_tune.import_trials(written, new)
    assert plain_sql(new, STORED) == [("optuna:tpe",)]


def test_merged_databases_keep_how_far_a_search_went(path: Path, tmp_path: Path) -> None:
    with Store.open(path, create=True) as store:
        store.add_trial(RUN, trial(500, strategy="model", space_configurations=1840))
        store.end_search(GPU, PROBLEM, BASIS, "max-trials")
    older, merged = tmp_path / "older.db", tmp_path / "merged.db"
    older.write_bytes(path.read_bytes())
    downgrade(older)
    tsm2_tune.import_trials(path, merged)
    tsm2_tune.import_trials(older, merged)
    assert plain_sql(merged, OF_SPACE) == [(1840, "max-trials")]
    with Store.open(older, create=True):
        assert plain_sql(older, OF_SPACE) == [(1840, None)]
