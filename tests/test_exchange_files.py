"""Trials of a database in files of other autotuners' formats: which are written, and what an import makes of them."""

from __future__ import annotations

import importlib.util
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tsm2_tune
from tests.command import run
from tests.databases import database_of, facts
from tests.exchanged import (
    BEHIND,
    CACHE,
    FASTEST,
    OTHER,
    RUN,
    SLOWER,
    T4,
    WITH,
    WRONG,
    document,
    tuned_database,
    written,
)
from tests.fabricated import BASIS, GPU, PROBLEM, final, measurement, plain_sql, source, trial, tuning_run
from tests.processes import python
from tsm2_tune.tuner.results.fingerprint import basis
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Cache

pytestmark = pytest.mark.usefixtures("session_cache")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("exchange") / "tuned.db"
    tuned_database(path)
    return path


@pytest.fixture
def tuned(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(made, tmp_path / "tuned.db"))


def of_problem(path: Path, family: str | None = None) -> Any:
    """All that a database has of the problem, or of its trials of this family, as an export has them."""
    part = facts(path)[GPU, PROBLEM]
    kept = {key: one for key, one in part.trials.items() if family in (None, one.values["family"])}
    rounds = [replace(one, timed={key: one.timed[key] for key in one.timed if key in kept}) for one in part.rounds]
    return kept, rounds


# Written files


def test_a_file_has_one_problem_and_a_cache_one_family(tuned: Path) -> None:
    with pytest.raises(tsm2_tune.InputError, match=rf"this selection of .* has 2: choose one.*--shapes {OTHER.text}"):
        tsm2_tune.export(tuned, format=T4)
    with pytest.raises(tsm2_tune.InputError, match=r"trials of ism2, tsm2 for .*: choose a family with --family"):
        tsm2_tune.export(tuned, format=CACHE, products=PROBLEM.text)
    assert {one["configuration"]["family"] for one in document(tuned, T4, family="ism2")["results"]} == {"ism2"}
    with pytest.raises(tsm2_tune.InputError, match=r"nothing to export: .* has no trial for this selection"):
        tsm2_tune.export(tuned, format=T4, products=PROBLEM.text, family="gemm")
    with pytest.raises(tsm2_tune.InputError, match="--family is only for --format t4 and kernel-tuner-cache"):
        tsm2_tune.export(tuned, format="csv", family="tsm2")


def test_only_trials_that_compete_in_one_state_are_written(tuned: Path) -> None:
    run_ = replace(RUN, started_at="2026-05-05T00:00:00+00:00")
    dirty = basis(RUN.identity.toolkit, RUN.identity.flags, Cache.DIRTY)
    timed = replace(measurement(550), cache=Cache.DIRTY)
    with Store.open(tuned, create=False) as store:
        store.add_trial(run_, replace(trial(config=SLOWER, basis=dirty), cache=Cache.DIRTY, measurement=timed))
    plain_sql(tuned, f"UPDATE trial SET superseded = 1 WHERE config = '{WRONG.text}'")
    (one,) = document(tuned, T4)["results"]
    assert one["times"]["runtimes"] == [0.549, 0.55, 0.551]
    clean = document(tuned, T4, cache="clean")
    assert clean["metadata"]["l2_before_each_sample"] == "clean"
    assert len(clean["results"]) == 8


def test_contradictory_trials_are_refused(tuned: Path) -> None:
    plain_sql(tuned, f"UPDATE trial SET outcome = 'interrupted' WHERE config = '{WRONG.text}'")
    assert len(document(tuned, T4)["results"]) == 8
    plain_sql(tuned, f"UPDATE trial SET verdict_correct = 0 WHERE config = '{FASTEST.text}'")
    with pytest.raises(tsm2_tune.StoreError, match="trial 1 is ok, but has no right result or time"):
        document(tuned, T4)
    plain_sql(tuned, "UPDATE trial SET outcome = 'interrupted'")
    with pytest.raises(tsm2_tune.InputError, match="nothing to export"):
        document(tuned, T4)


# There and back


@pytest.mark.slow
@pytest.mark.parametrize("form", [T4, CACHE])
def test_trials_come_back_equal_and_twice_is_as_once(form: str, tuned: Path, tmp_path: Path) -> None:
    file, new = written(tuned, form), tmp_path / "new.db"
    found = tsm2_tune.import_trials(file, new)
    assert (found.trials, found.left_out) == ({T4: 9, CACHE: 8}[form], ())
    assert of_problem(new) == of_problem(tuned, WITH[form].get("family"))
    content = new.read_bytes()
    again = run("import", str(file), "--db", str(new))
    assert (again.exit_code, again.stdout) == (
        0,
        f"{new}: nothing new: {found.trials} trials already present, of 1 problem\n",
    )
    assert new.read_bytes()[100:] == content[100:]  # behind the header, which counts openings
    assert not tsm2_tune.import_trials(file, tuned).changed
    assert written(new, form, family="tsm2").read_bytes() == written(tuned, form, family="tsm2").read_bytes()


def test_imported_times_keep_their_run_and_finals_remeasure_them(tuned: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.db"
    tsm2_tune.import_trials(written(tuned, T4, family="tsm2"), new)
    here = replace(tuning_run(uuid="GPU-here", started_at="2026-06-06T00:00:00+00:00"), sms=132)
    with Store.open(new, create=False) as store:
        tried = store.history(GPU, PROBLEM, ("tsm2",), BASIS).tried()
        assert {one.config for one in tried if one.is_new} == {SLOWER, BEHIND}
        store.add_final(here, final((FASTEST, 600), (SLOWER, 610)), ("tsm2",), BASIS)
        assert [row.median_us for row in store.best(problem=PROBLEM)] == [600]
    owners = plain_sql(new, "SELECT round, device_uuid FROM measurement JOIN run ON run.id = run_id ORDER BY round")
    assert owners == [*[(0, "GPU-1")] * 3, (1, "GPU-1"), (2, "GPU-here"), (2, "GPU-here")]


def test_a_kernel_that_is_made_otherwise_is_left_out_and_told(tmp_path: Path) -> None:
    ours, new = tmp_path / "ours.db", tmp_path / "new.db"
    trials = trial(500, FASTEST, source=source(FASTEST)), trial(510, SLOWER)
    database_of(ours, *trials, run=RUN, final=final((FASTEST, 505), (SLOWER, 515)))
    file = written(ours, T4)
    said = run("import", str(file), "--db", str(new))
    assert said.exit_code == 0
    assert said.stderr == (
        f"left out: {FASTEST.text}, measured on {GPU}, has other kernel code in this tsm2-tune: tune"
        f" {PROBLEM.text} again\n"
    )
    assert said.stdout == f"{new}: added 1 trial (0 already present) and 2 measurements, of 1 problem\n"


# Files in Kernel Tuner

REPLAYED = """
import json, sys
import jsonschema, kernel_tuner
from kernel_tuner.file_utils import get_t4_results, output_file_schema

cache, t4 = sys.argv[1:]
own = json.load(open(cache))
results, _ = kernel_tuner.tune_cache(cache, quiet=True)
limits = {"max_fevals": 1, "time_limit": 3600}
some, _ = kernel_tuner.tune_cache(cache, quiet=True, strategy="random_sample", strategy_options=limits)
named = {name: own[name] for name in ("kernel_name", "problem_size", "tune_params")}
every, environment = kernel_tuner.tune_kernel(
    kernel_source="", arguments=[], cache=cache, simulation_mode=True, quiet=True,
    restrictions=lambda p: ",".join(str(p[name]) for name in own["tune_params_keys"]) in own["cache"],
    **named,
)
_, schema = output_file_schema("results")
jsonschema.validate(json.load(open(t4)), schema)
jsonschema.validate(get_t4_results(every, own["tune_params"]), schema)
best = min(results, key=lambda one: one["time"])
print(json.dumps({
    "results": len(results), "some": len(some), "every": len(every), "device": environment["device_name"],
    "failed": sorted(str(one["__error__"]) for one in every if "__error__" in one),
    "best": {name: best[name] for name in (*own["tune_params_keys"], "time", "times")},
}))
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("kernel_tuner") is None, reason="kernel_tuner is not installed")
def test_kernel_tuner_replays_a_cache_and_accepts_the_t4_file(tuned: Path) -> None:
    files = [str(written(tuned, form)) for form in (CACHE, T4)]
    content = [Path(file).read_bytes() for file in files]
    answer = python("-c", REPLAYED, *files)
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout.splitlines()[-1]) == {
        "results": 3,  # the one that was behind too
        "some": 1,
        "every": 8,
        "device": GPU,
        "failed": ["CompilationFailedConfig"] + ["RuntimeFailedConfig"] * 4,
        "best": {**FASTEST.tunables, "time": 0.505, "times": [0.504, 0.505, 0.506]},
    }
    assert [Path(file).read_bytes() for file in files] == content
