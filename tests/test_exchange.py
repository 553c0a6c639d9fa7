"""Trials in formats of other autotuners: what is written, what an import makes of it, and what is refused."""

from __future__ import annotations

import copy
import importlib.util
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tsm2_tune
from tests.command import run
from tests.databases import facts
from tests.exchanged import (
    BEHIND,
    CACHE,
    FASTEST,
    OTHER,
    RUN,
    SLOWER,
    SNAPSHOTS,
    T4,
    WRONG,
    document,
    entry,
    snapshot,
    tuned_database,
    written,
)
from tests.fabricated import BASIS, GPU, PROBLEM, final, measurement, plain_sql, trial, tuning_run
from tests.processes import python
from tests.schema_file import columns_since_oldest
from tsm2_tune.errors import InputError, StoreError
from tsm2_tune.tuner.results.exchange.document_parser import parse_content, parse_document
from tsm2_tune.tuner.results.exchange.documents import DOCUMENTS
from tsm2_tune.tuner.results.exchange.entry import NAME, Entry, record_of
from tsm2_tune.tuner.results.fingerprint import basis
from tsm2_tune.tuner.results.merge.reader import own_columns
from tsm2_tune.tuner.results.merge.text_parser import WRONG as ERRORS
from tsm2_tune.tuner.results.merge.union import Part
from tsm2_tune.tuner.results.storage import schema
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


@pytest.mark.parametrize("form", DOCUMENTS)
def test_a_document_is_as_its_readers_expect_it(form: str) -> None:
    """T4's schema and Kernel Tuner need what the snapshot has."""
    assert snapshot(form) == SNAPSHOTS.joinpath(f"{form}.json").read_text(), "python -m tests.exchanged"
    assert form != CACHE or json.dumps(DOCUMENTS[form](entry("tsm2"))).endswith("}}}")


def test_members_that_older_versions_lack_are_left_out_if_they_are_null() -> None:
    lacking = {"first_basis", "space_configurations", *columns_since_oldest("trial")}
    found = record_of(entry())
    for one in found["trials"]:
        assert {column.name for column in own_columns(schema.trial)} - one.keys() == lacking
    for one in found["rounds"][0]["timed"]:
        lacking = {"slowed"} if "slowed" not in one else set()
        assert {column.name for column in own_columns(schema.measurement)} - one.keys() == lacking
        assert one.get("slowed", 2) == 2


@pytest.mark.parametrize("form", DOCUMENTS)
def test_a_document_tells_what_it_was_made_of(form: str) -> None:
    made = entry("tsm2")
    told = parse_document(json.loads(json.dumps(DOCUMENTS[form](made))))
    assert (told.parts, told.left_out) == ({(GPU, PROBLEM): made.part}, {})
    assert {one.values["source_digest"] for one in made.part.trials.values()} == told.sources.keys()
    tried = next(iter(made.part.trials.values()))
    for changes, why in (
        ({"family": "tsmr", "config": "tsmr:threads=64"}, "is not a configuration of this tsm2-tune"),
        ({"source_digest": "0" * 64}, f"has other kernel code in this tsm2-tune: tune {PROBLEM.text} again"),
    ):
        odd = replace(tried, values={**tried.values, **changes})
        made = Entry(GPU, PROBLEM, Cache.CLEAN, Part({odd.key: odd}, []))
        told = parse_document(json.loads(json.dumps(DOCUMENTS[form](made))))
        config = odd.values["config"]
        assert (told.parts, told.left_out) == ({}, {config: f"left out: {config}, measured on {GPU}, {why}"})


# Refusals of documents

EDITS: dict[str, Callable[[Any, Any, Any, Any], object]] = {  # of a document, its record, the first trial and round
    "a time": lambda d, r, t, f: d["results"][0]["times"]["runtimes"].append(1.0),
    "an outcome": lambda d, r, t, f: d["results"][0].update(invalidity="compile"),
    "a result less": lambda d, r, t, f: d["results"].pop(),
    "a result twice": lambda d, r, t, f: d["results"].append(d["results"][0]),
    "another member": lambda d, r, t, f: d.update(more=1),
    "another member of a trial": lambda d, r, t, f: t.update(more=1),
    "no results": lambda d, r, t, f: d.pop("results"),
    "a record that is a list": lambda d, r, t, f: d.update({NAME: []}),
    "a record that is null": lambda d, r, t, f: d.update({NAME: None}),
    "no runs": lambda d, r, t, f: r.update(runs=[]),
    "a run more": lambda d, r, t, f: r["runs"].append(r["runs"][0]),
    "another device": lambda d, r, t, f: r["runs"][0].update(device_name="another"),
    "no trials": lambda d, r, t, f: (r.update(trials=[], rounds=[]), d.update(results=[])),
    "a trial twice": lambda d, r, t, f: r["trials"].append(t),
    "a round twice": lambda d, r, t, f: r["rounds"].append(f),
    "a round of nothing": lambda d, r, t, f: f.update(timed=[], vendor=[]),
    "a round below 1": lambda d, r, t, f: f.update(stamp=0),
    "a trial counted from the end": lambda d, r, t, f: f["timed"][0].update(trial=-1),
    "a family of no configuration": lambda d, r, t, f: t.update(family="tsm9"),
    "tunables of others": lambda d, r, t, f: t.update(tunables='{"block_size_x":32}'),
    "another state": lambda d, r, t, f: r.update(cache="dirty"),
    "a superseded trial": lambda d, r, t, f: t.update(superseded=1),
    "interrupted": lambda d, r, t, f: t.update(outcome="interrupted"),
    "right without a time": lambda d, r, t, f: t.update(first=None),
    "right without a verdict": lambda d, r, t, f: t.update(verdict_correct=0),
    "an error over the bound": lambda d, r, t, f: t.update(verdict_worst_ratio=2.0),
    "a vendor's time in another state": lambda d, r, t, f: f["vendor"][0].update(cache="dirty"),
    "a basis that is not a digest": lambda d, r, t, f: t.update(basis="=cmd|x"),
    "its own time in another state": lambda d, r, t, f: t["first"].update(cache="dirty"),
    "behind with a verdict": lambda d, r, t, f: t.update(outcome="behind"),
    "wrong with a right result": lambda d, r, t, f: t.update(outcome="wrong-result"),
    "a run that is a truth": lambda d, r, t, f: t.update(run=False),
    "a round that is a truth": lambda d, r, t, f: f.update(number=True),
}
TEXTS: dict[str, Callable[[str], str]] = {
    "cut off": lambda text: text[: len(text) // 2],
    "cut off at the end": lambda text: text.rstrip()[:-1],
    "a brace": lambda text: "{",
    "NaN": lambda text: text.replace('"compilation":2000.0', '"compilation":NaN'),
    "an infinite number": lambda text: text.replace('"compile_seconds":2.0', '"compile_seconds":1e999'),
    "a number of thousands of digits": lambda text: text.replace('"seed":1', f'"seed":{"9" * 5000}'),
    "a member twice": lambda text: text.replace('"rounds":', '"rounds":[],"rounds":'),
    "deep": lambda text: '{"tsm2_tune":' * 100_000,
    "deep and closed": lambda text: '{"tsm2_tune":' + "[" * 100_000 + "]" * 100_000 + "}",
    "two objects": lambda text: text + text,
    "a device with an escape": lambda text: text.replace(GPU, r"\u001b[2J"),
}


@pytest.fixture(scope="module")
def good() -> dict[str, Any]:
    return dict(json.loads(json.dumps(DOCUMENTS[T4](entry()))))


@pytest.mark.parametrize("what", EDITS)
def test_a_document_that_was_edited_is_refused(what: str, good: dict[str, Any]) -> None:
    other = copy.deepcopy(good)
    parse_document(other)
    EDITS[what](other, other[NAME], other[NAME]["trials"][0], other[NAME]["rounds"][0])
    with pytest.raises(ERRORS):
        parse_document(other)


@pytest.mark.parametrize("member", ["time", "threads", "__error__", "timestamp"])
def test_a_cache_whose_entries_are_not_its_records_is_refused(member: str) -> None:
    found = DOCUMENTS[CACHE](entry("tsm2"))
    for one in found["cache"].values():
        one[member] = "x"
    with pytest.raises(ValueError, match="do not agree"):
        parse_document(found)


@pytest.mark.parametrize("what", TEXTS)
def test_a_damaged_text_is_refused(what: str, good: dict[str, Any], tmp_path: Path) -> None:
    file, text = tmp_path / "damaged.json", json.dumps(good, separators=(",", ":"))
    file.write_text(text)
    parse_content(file, file.read_bytes())
    assert TEXTS[what](text) != text
    file.write_text(TEXTS[what](text))
    with pytest.raises(InputError, match="is not as this tsm2-tune writes it") as refused:
        parse_content(file, file.read_bytes())
    assert len(str(refused.value)) < 1000
    assert str(refused.value).isprintable()


def test_a_file_has_one_problem_and_a_cache_one_family(tuned: Path) -> None:
    of_problem: dict[str, Any] = {"products": PROBLEM.text}
    for options, sentence in (
        ({"format": T4}, rf"this selection of .* has 2: choose one.*--shapes {OTHER.text}"),
        ({"format": CACHE, **of_problem}, r"trials of ism2, tsm2 for .*: choose a family with --family"),
        ({"format": T4, **of_problem, "family": "gemm"}, r"nothing to export: .* has no trial for this selection"),
        ({"format": "csv", "family": "tsm2"}, "--family is only for --format t4 and kernel-tuner-cache"),
    ):
        with pytest.raises(InputError, match=sentence):
            tsm2_tune.export(tuned, **options)
    assert {one["configuration"]["family"] for one in document(tuned, T4, family="ism2")["results"]} == {"ism2"}


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
    assert (clean["metadata"]["l2_before_each_sample"], len(clean["results"])) == ("clean", 8)


def test_contradictory_trials_are_refused(tuned: Path) -> None:
    plain_sql(tuned, f"UPDATE trial SET outcome = 'interrupted' WHERE config = '{WRONG.text}'")
    assert len(document(tuned, T4)["results"]) == 8
    plain_sql(tuned, f"UPDATE trial SET verdict_correct = 0 WHERE config = '{FASTEST.text}'")
    with pytest.raises(StoreError, match="trial 1 is ok, but has no right result or time"):
        document(tuned, T4)
    plain_sql(tuned, "UPDATE trial SET outcome = 'interrupted'")
    with pytest.raises(InputError, match="nothing to export"):
        document(tuned, T4)


@pytest.mark.slow
@pytest.mark.parametrize(("form", "trials", "family"), [(T4, 9, None), (CACHE, 8, "tsm2")])
def test_trials_come_back_equal(form: str, trials: int, family: str | None, tuned: Path, tmp_path: Path) -> None:
    def of_problem(path: Path, family: str | None = None) -> Any:
        part = facts(path)[GPU, PROBLEM]
        kept = {key: one for key, one in part.trials.items() if family in (None, one.values["family"])}
        rounds = [{key: timed for key, timed in one.timed.items() if key in kept} for one in part.rounds]
        return kept, [replace(one, timed=timed) for one, timed in zip(part.rounds, rounds, strict=True)]

    file, new = written(tuned, form), tmp_path / "new.db"
    found = tsm2_tune.import_trials(file, new)
    assert (found.trials, found.left_out) == (trials, ())
    assert of_problem(new) == of_problem(tuned, family)
    content = new.read_bytes()
    again = run("import", str(file), "--db", str(new))
    assert again.stdout == f"{new}: nothing new: {trials} trials already present, of 1 problem\n"
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
