"""Trials in formats of other autotuners, without a database: what a document has, and which ones are refused."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.exchanged import BEHIND, CRASHED, FASTEST, ISM2, LATE, REFUSED, SLOWER, UNSTARTED, WRONG, entry
from tests.fabricated import GPU, PROBLEM
from tsm2_tune.errors import InputError
from tsm2_tune.tuner.results.exchange.document_parser import parse_document, parse_file
from tsm2_tune.tuner.results.exchange.documents import DOCUMENTS
from tsm2_tune.tuner.results.exchange.entry import NAME, Entry, record_of
from tsm2_tune.tuner.results.merge.problem_rows import own_columns
from tsm2_tune.tuner.results.merge.text_parser import WRONG as ERRORS
from tsm2_tune.tuner.results.merge.union import Part
from tsm2_tune.tuner.results.storage import schema
from tsm2_tune.tuner.results.trial import Cache

# Written files


def test_t4_has_every_trial_with_its_outcome_and_times() -> None:
    found = DOCUMENTS["t4"](entry())
    by_text = {str(sorted(one["configuration"].items())): one for one in found["results"]}
    assert len(by_text) == len(found["results"]) == 9
    expected = {
        FASTEST: "correct", SLOWER: "correct", ISM2: "correct", WRONG: "correctness", LATE: "timeout",
        REFUSED: "compile", UNSTARTED: "runtime", CRASHED: "runtime", BEHIND: "correct",
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


def test_members_that_older_versions_lack_are_left_out_if_they_are_null() -> None:
    found, lacking = record_of(entry()), {"first_basis", "space_configurations", "search_ended"}
    for one in found["trials"]:
        assert {column.name for column in own_columns(schema.trial)} - one.keys() == lacking
    for one in found["rounds"][0]["timed"]:
        lacking = {"slowed"} if "slowed" not in one else set()
        assert {column.name for column in own_columns(schema.measurement)} - one.keys() == lacking
        assert one.get("slowed", 2) == 2


def test_a_cache_has_the_trials_of_one_family_by_their_tunables() -> None:
    found = DOCUMENTS["kernel-tuner-cache"](entry("tsm2"))
    assert list(found)[-1] == "cache"
    assert json.dumps(found).endswith("}}}")
    assert (found["device_name"], found["kernel_name"], found["objective"]) == (GPU, "tsm2", "time")
    assert found["problem_size"] == [PROBLEM.m, PROBLEM.n, PROBLEM.k]
    names = found["tune_params_keys"]
    assert found["tune_params"] == {
        "columns": [4, 8, 16], "prefetch": [4], "threads": [64, 128, 256, 512], "version": ["v3"],
    }  # fmt: skip
    assert list(found["tune_params"]) == names
    assert len(found["cache"]) == 8
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


# And read


@pytest.mark.parametrize("form", DOCUMENTS)
def test_a_document_tells_what_it_was_made_of(form: str) -> None:
    made = entry("tsm2")
    told = parse_document(json.loads(json.dumps(DOCUMENTS[form](made))))
    assert told.parts == {(GPU, PROBLEM): made.part}
    assert not told.left_out
    assert {one.values["source_digest"] for one in made.part.trials.values()} == told.sources.keys()


@pytest.mark.parametrize("form", DOCUMENTS)
def test_a_family_that_is_no_more_is_left_out(form: str) -> None:
    tried = next(iter(entry().part.trials.values()))
    bygone = replace(tried, values={**tried.values, "family": "tsmr", "config": "tsmr:threads=64"})
    made = Entry(GPU, PROBLEM, Cache.CLEAN, Part({bygone.key: bygone}, []))
    told = parse_document(json.loads(json.dumps(DOCUMENTS[form](made))))
    assert not told.parts
    assert told.left_out == {
        "tsmr:threads=64": f"left out: tsmr:threads=64, measured on {GPU}, is not a configuration of this tsm2-tune"
    }


# Refusals

EDITS: dict[str, Callable[[Any], object]] = {
    "a time": lambda d: d["results"][0]["times"]["runtimes"].append(1.0),
    "an outcome": lambda d: d["results"][0].update(invalidity="compile"),
    "a result less": lambda d: d["results"].pop(),
    "a result twice": lambda d: d["results"].append(d["results"][0]),
    "another member": lambda d: d.update(more=1),
    "another member of a trial": lambda d: d[NAME]["trials"][0].update(more=1),
    "no results": lambda d: d.pop("results"),
    "a record of another version": lambda d: d[NAME].update(version=3),
    "a record that is a list": lambda d: d.update({NAME: []}),
    "a record that is null": lambda d: d.update({NAME: None}),
    "no runs": lambda d: d[NAME].update(runs=[]),
    "a run more": lambda d: d[NAME]["runs"].append(d[NAME]["runs"][0]),
    "another device": lambda d: d[NAME]["runs"][0].update(device_name="another"),
    "no trials": lambda d: (d[NAME].update(trials=[], rounds=[]), d.update(results=[])),
    "a trial twice": lambda d: d[NAME]["trials"].append(d[NAME]["trials"][0]),
    "a round twice": lambda d: d[NAME]["rounds"].append(d[NAME]["rounds"][0]),
    "a round of nothing": lambda d: d[NAME]["rounds"][0].update(timed=[], vendor=[]),
    "a round below 1": lambda d: d[NAME]["rounds"][0].update(stamp=0),
    "a trial counted from the end": lambda d: d[NAME]["rounds"][0]["timed"][0].update(trial=-1),
    "a family of no configuration": lambda d: d[NAME]["trials"][0].update(family="tsm9"),
    "tunables of others": lambda d: d[NAME]["trials"][0].update(tunables='{"block_size_x":32}'),
    "another state": lambda d: d[NAME].update(cache="dirty"),
    "a superseded trial": lambda d: d[NAME]["trials"][0].update(superseded=1),
    "interrupted": lambda d: d[NAME]["trials"][0].update(outcome="interrupted"),
    "right without a time": lambda d: d[NAME]["trials"][0].update(first=None),
    "right without a verdict": lambda d: d[NAME]["trials"][0].update(verdict_correct=0),
    "an error over the bound": lambda d: d[NAME]["trials"][0].update(verdict_worst_ratio=2.0),
    "a vendor's time in another state": lambda d: d[NAME]["rounds"][0]["vendor"][0].update(cache="dirty"),
    "a basis that is not a digest": lambda d: d[NAME]["trials"][0].update(basis="=cmd|x"),
    "its own time in another state": lambda d: d[NAME]["trials"][0]["first"].update(cache="dirty"),
    "behind with a verdict": lambda d: d[NAME]["trials"][0].update(outcome="behind"),
    "wrong with a right result": lambda d: d[NAME]["trials"][0].update(outcome="wrong-result"),
    "a run that is a truth": lambda d: d[NAME]["trials"][0].update(run=False),
    "a round that is a truth": lambda d: d[NAME]["rounds"][0].update(number=True),
}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return dict(json.loads(json.dumps(DOCUMENTS["t4"](entry()))))


@pytest.mark.parametrize("what", EDITS)
def test_a_document_that_was_edited_is_refused(what: str, document: dict[str, Any]) -> None:
    other = copy.deepcopy(document)
    parse_document(other)
    EDITS[what](other)
    with pytest.raises(ERRORS):
        parse_document(other)


@pytest.mark.parametrize("member", ["time", "threads", "__error__", "timestamp"])
def test_a_cache_whose_entries_are_not_its_records_is_refused(member: str) -> None:
    found = DOCUMENTS["kernel-tuner-cache"](entry("tsm2"))
    for one in found["cache"].values():
        one[member] = "x"
    with pytest.raises(ValueError, match="do not agree"):
        parse_document(found)


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


@pytest.mark.parametrize("what", TEXTS)
def test_a_damaged_text_is_refused(what: str, document: dict[str, Any], tmp_path: Path) -> None:
    file, text = tmp_path / "damaged.json", json.dumps(document, separators=(",", ":"))
    file.write_text(text)
    parse_file(file)
    assert TEXTS[what](text) != text
    file.write_text(TEXTS[what](text))
    with pytest.raises(InputError, match="is not as this tsm2-tune writes it") as refused:
        parse_file(file)
    assert len(str(refused.value)) < 1000
    assert str(refused.value).isprintable()
