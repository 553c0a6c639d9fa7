"""Trials in formats of other autotuners: what a file has, what an import makes of it, and what it refuses."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tsm2_tune
from tests.command import run
from tests.exchanged import (
    CACHE,
    CRASHED,
    FASTEST,
    ISM2,
    LATE,
    OTHER,
    REFUSED,
    RUN,
    SLOWER,
    T4,
    UNSTARTED,
    WITH,
    WRONG,
    document,
    tuned_database,
    written,
)
from tests.fabricated import (
    BASIS,
    GPU,
    PROBLEM,
    final,
    measurement,
    plain_sql,
    source,
    trial,
    tuning_run,
)
from tests.test_importing import facts
from tsm2_tune.tuner.basis import basis
from tsm2_tune.tuner.exchange.record import Entry, entry_of, record_of
from tsm2_tune.tuner.store import Store
from tsm2_tune.tuner.trial import Cache

pytestmark = pytest.mark.usefixtures("session_cache")


@pytest.fixture
def tuned(tmp_path: Path) -> Path:
    tuned_database(tmp_path / "tuned.db")
    return tmp_path / "tuned.db"


def of_problem(path: Path, family: str | None = None) -> Any:
    """All that a database has of the problem, or of its trials of this family, as an export has them."""
    part = facts(path)[GPU, PROBLEM]
    kept = {key: one for key, one in part.trials.items() if family in (None, one.values["family"])}
    rounds = [replace(one, timed={key: one.timed[key] for key in one.timed if key in kept}) for one in part.rounds]
    return kept, rounds


# What is written


def test_t4_has_every_trial_with_its_outcome_and_times(tuned: Path) -> None:
    found = document(tuned, T4)
    by_text = {str(sorted(one["configuration"].items())): one for one in found["results"]}
    assert len(by_text) == len(found["results"]) == 8
    expected = {
        FASTEST: "correct", SLOWER: "correct", ISM2: "correct", WRONG: "correctness", LATE: "timeout",
        REFUSED: "compile", UNSTARTED: "runtime", CRASHED: "runtime",
    }  # fmt: skip
    for config, word in expected.items():
        one = by_text[str(sorted({"family": config.family, **config.tunables}.items()))]
        assert one["invalidity"] == word
        assert one["correctness"] == int(word != "correctness")
        assert [each["name"] for each in one["measurements"]].count("time") == 1
    one = by_text[str(sorted({"family": "tsm2", **FASTEST.tunables}.items()))]
    assert one["times"] == {
        "compilation": 2000.0, "compilation_time": 2000.0, "benchmark": 1000.0, "framework": 0.0,
        "search_algorithm": 0.0, "validation": 0.0, "runtimes": [0.504, 0.505, 0.506],
    }  # fmt: skip
    rate = PROBLEM.flops / 505e-6 / 1e9
    assert one["measurements"][:2] == [
        {"name": "time", "value": 0.505, "unit": "ms"},
        {"name": "GFLOP/s", "value": pytest.approx(rate), "unit": "GFLOP/s"},
    ]
    assert one["objectives"] == ["time"]
    assert found["schema_version"] == "1.0.0"
    told = found["metadata"]
    assert (told["timeunit"], told["device_name"], told["toolkit"]) == ("milliseconds", GPU, "nvcc 13.0")
    assert (told["problem"], told["l2_before_each_sample"]) == (PROBLEM.text, "clean")


def test_a_cache_has_the_trials_of_one_family_by_their_tunables(tuned: Path) -> None:
    found = document(tuned, CACHE)
    assert list(found)[-1] == "cache"
    assert written(tuned, CACHE).read_text().strip().endswith("}}}")
    assert (found["device_name"], found["kernel_name"], found["objective"]) == (GPU, "tsm2", "time")
    assert found["problem_size"] == [PROBLEM.m, PROBLEM.n, PROBLEM.k]
    names = found["tune_params_keys"]
    assert found["tune_params"] == {
        "columns": [8, 16], "prefetch": [4], "threads": [64, 128, 256, 512], "version": ["v3"],
    }  # fmt: skip
    assert list(found["tune_params"]) == names
    assert len(found["cache"]) == 7
    for key, one in found["cache"].items():
        assert key == ",".join(str(one[name]) for name in names)
    errors = {
        (one["threads"], one["columns"]): one["__error__"] for one in found["cache"].values() if "__error__" in one
    }
    assert errors == {
        (64, 8): "CompilationFailedConfig",
        **dict.fromkeys(((128, 16), (256, 16), (64, 16), (512, 8)), "RuntimeFailedConfig"),
    }
    assert all(one["time"] == one.get("__error__", one["time"]) for one in found["cache"].values())
    one = found["cache"]["8,4,128,v3"]
    assert (one["time"], one["times"], one["registers"]) == (0.505, [0.504, 0.505, 0.506], 64)


def test_a_file_has_one_problem_and_a_cache_one_family(tuned: Path) -> None:
    with pytest.raises(tsm2_tune.InputError, match=rf"has 2 of what was asked for.*--shapes {OTHER.text}"):
        tsm2_tune.export(tuned, format=T4)
    with pytest.raises(tsm2_tune.InputError, match=r"those of ism2, tsm2 for .*: name one with --family"):
        tsm2_tune.export(tuned, format=CACHE, products=PROBLEM.text)
    assert {one["configuration"]["family"] for one in document(tuned, T4, family="ism2")["results"]} == {"ism2"}
    with pytest.raises(tsm2_tune.InputError, match=r"nothing to export: .* has no trial of what was asked for"):
        tsm2_tune.export(tuned, format=T4, products=PROBLEM.text, family="gemm")
    with pytest.raises(tsm2_tune.InputError, match="--family is of --format t4 and kernel-tuner-cache"):
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
    assert len(clean["results"]) == 7


# There and back


@pytest.mark.parametrize("form", [T4, CACHE])
def test_trials_come_back_equal_and_twice_is_as_once(form: str, tuned: Path, tmp_path: Path) -> None:
    file, new = written(tuned, form), tmp_path / "new.db"
    found = tsm2_tune.import_trials(file, new)
    assert (found.trials, found.left_out) == ({T4: 8, CACHE: 7}[form], ())
    assert of_problem(new) == of_problem(tuned, WITH[form].get("family"))
    content = new.read_bytes()
    again = run("import", str(file), "--db", str(new))
    assert (again.exit_code, again.stdout) == (
        0,
        f"{new}: nothing new: {found.trials} trials were there, of 1 problems\n",
    )
    assert new.read_bytes()[100:] == content[100:]  # behind the header, which counts openings
    assert not tsm2_tune.import_trials(file, tuned).changed
    assert written(new, form, family="tsm2").read_bytes() == written(tuned, form, family="tsm2").read_bytes()


def test_a_record_gives_back_its_entry(tuned: Path) -> None:
    entry = Entry(GPU, PROBLEM, Cache.CLEAN, facts(tuned)[GPU, PROBLEM])
    text = json.dumps(record_of(entry), allow_nan=False)
    assert entry_of(json.loads(text)) == entry


def test_imported_times_are_of_their_own_run_and_the_next_final_measures_them_again(
    tuned: Path, tmp_path: Path
) -> None:
    new = tmp_path / "new.db"
    tsm2_tune.import_trials(written(tuned, T4, family="tsm2"), new)
    here = replace(tuning_run(uuid="GPU-here", started_at="2026-06-06T00:00:00+00:00"), sms=132)
    with Store.open(new, create=False) as store:
        tried = store.history(GPU, PROBLEM, ("tsm2",), BASIS).tried()
        assert {one.config for one in tried if one.is_new} == {SLOWER}
        store.add_final(here, final((FASTEST, 600), (SLOWER, 610)), ("tsm2",), BASIS)
        assert [row.median_us for row in store.best(problem=PROBLEM)] == [600]
    owners = plain_sql(new, "SELECT round, device_uuid FROM measurement JOIN run ON run.id = run_id ORDER BY round")
    assert owners == [(0, "GPU-1"), (0, "GPU-1"), (1, "GPU-1"), (2, "GPU-here"), (2, "GPU-here")]


def test_a_kernel_that_is_made_otherwise_is_left_out_and_told(tmp_path: Path) -> None:
    ours, new = tmp_path / "ours.db", tmp_path / "new.db"
    with Store.open(ours, create=True) as store:
        store.add_trial(RUN, trial(500, FASTEST, source=source(FASTEST)))
        store.add_trial(RUN, trial(510, SLOWER))
        store.add_final(RUN, final((FASTEST, 505), (SLOWER, 515)), ("tsm2",), BASIS)
    file = written(ours, T4)
    said = run("import", str(file), "--db", str(new))
    assert said.exit_code == 0
    assert said.stderr == (
        f"left out: {FASTEST.text}, measured on {GPU}, is made otherwise by this tsm2-tune:"
        f" tune {PROBLEM.text} again\n"
    )
    assert said.stdout == f"{new}: 1 trial added, 0 were there; 2 measurements added, of 1 problem\n"


# What Kernel Tuner makes of them

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


@pytest.mark.skipif(importlib.util.find_spec("kernel_tuner") is None, reason="kernel_tuner is not installed")
def test_kernel_tuner_replays_a_cache_and_accepts_the_t4_file(tuned: Path) -> None:
    files = [str(written(tuned, form)) for form in (CACHE, T4)]
    content = [Path(file).read_bytes() for file in files]
    answer = subprocess.run([sys.executable, "-c", REPLAYED, *files], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout.splitlines()[-1]) == {
        "results": 2,
        "some": 1,
        "every": 7,
        "device": GPU,
        "failed": ["CompilationFailedConfig"] + ["RuntimeFailedConfig"] * 4,
        "best": {**FASTEST.tunables, "time": 0.505, "times": [0.504, 0.505, 0.506]},
    }
    assert [Path(file).read_bytes() for file in files] == content
