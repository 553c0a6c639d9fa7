"""Files in formats of other autotuners that are not as an export writes them: each is refused in one sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.command import run
from tests.exchanged import CACHE, T4, tuned_database, written
from tests.fabricated import GPU
from tsm2_tune.tuner.domains import MOST_SAMPLES
from tsm2_tune.tuner.exchange.record import NAME
from tsm2_tune.tuner.importing import reading

pytestmark = pytest.mark.usefixtures("session_cache")


@pytest.fixture
def tuned(tmp_path: Path) -> Path:
    tuned_database(tmp_path / "tuned.db")
    return tmp_path / "tuned.db"


def edited(path: Path, edit: Callable[[Any], object]) -> None:
    found = json.loads(path.read_text())
    edit(found)
    path.write_text(json.dumps(found))


def refused(path: Path, into: Path) -> str:
    """What an import of the file says, which changes nothing."""
    before = into.read_bytes()
    said = run("import", str(path), "--db", str(into))
    assert (said.exit_code, said.stdout) == (2, "")
    assert said.stderr.startswith("Error: ")
    assert (said.stderr.count("\n"), len(said.stderr) < 1000) == (1, True)
    assert into.read_bytes() == before
    missing = into.with_name("missing.db")
    assert run("import", str(path), "--db", str(missing)).exit_code == 2
    assert not missing.exists()
    return said.stderr


FOREIGN_ENTRY = {"block_size_x": 32, "time": 1.5, "times": [1.5], "compile_time": 1.0}
FOREIGN = {
    "cache": {
        "device_name": GPU, "kernel_name": "tsm2", "problem_size": [4096], "tune_params_keys": ["block_size_x"],
        "tune_params": {"block_size_x": [32]}, "objective": "time", "cache": {"32": FOREIGN_ENTRY},
    },
    "t4": {
        "schema_version": "1.0.0", "metadata": {"timeunit": "milliseconds"}, "results": [
            {"configuration": {"block_size_x": 32}, "times": {"runtimes": [1.5]}, "invalidity": "correct",
             "correctness": 1},
        ],
    },
    "empty": {},
}  # fmt: skip


@pytest.mark.parametrize("foreign", FOREIGN)
def test_files_of_other_tools_are_refused(foreign: str, tuned: Path, tmp_path: Path) -> None:
    file = tmp_path / "foreign.json"
    file.write_text(json.dumps(FOREIGN[foreign], indent=2))
    assert "kernels and tunables of other tools are no configurations of its families" in refused(file, tuned)


EDITS: dict[str, Callable[[Any], object]] = {
    "a time": lambda d: d["results"][0]["times"]["runtimes"].append(1.0),
    "an outcome": lambda d: d["results"][0].update(invalidity="compile"),
    "a result less": lambda d: d["results"].pop(),
    "a result twice": lambda d: d["results"].append(d["results"][0]),
    "another member": lambda d: d.update(more=1),
    "another member of a trial": lambda d: d[NAME]["trials"][0].update(more=1),
    "no results": lambda d: d.pop("results"),
    "a record of another version": lambda d: d[NAME].update(version=2),
    "a record that is a list": lambda d: d.update({NAME: []}),
    "a record that is null": lambda d: d.update({NAME: None}),
    "no runs": lambda d: d[NAME].update(runs=[]),
    "runs that are a number": lambda d: d[NAME].update(runs=7),
    "a run more": lambda d: d[NAME]["runs"].append(d[NAME]["runs"][0]),
    "another device": lambda d: d[NAME]["runs"][0].update(device_name="another"),
    "a device with an escape": lambda d: [one.update(device_name="\x1b[2J") for one in d[NAME]["runs"]],
    "no trials": lambda d: (d[NAME].update(trials=[], rounds=[]), d.update(results=[])),
    "a trial twice": lambda d: d[NAME]["trials"].append(d[NAME]["trials"][0]),
    "no rounds": lambda d: d[NAME].pop("rounds"),
    "a round twice": lambda d: d[NAME]["rounds"].append(d[NAME]["rounds"][0]),
    "a round of nothing": lambda d: d[NAME]["rounds"][0].update(timed=[], vendor=[]),
    "a round below 1": lambda d: d[NAME]["rounds"][0].update(number=0),
    "a huge round": lambda d: d[NAME]["rounds"][0].update(number=10**9),
    "a round of no number": lambda d: d[NAME]["rounds"][0].update(number="1"),
    "no such trial": lambda d: d[NAME]["rounds"][0]["timed"][0].update(trial=99),
    "a trial counted from the end": lambda d: d[NAME]["rounds"][0]["timed"][0].update(trial=-1),
    "no such run": lambda d: d[NAME]["trials"][0].update(run=99),
    "a run of no number": lambda d: d[NAME]["trials"][0].update(run={}),
    "no configuration": lambda d: d[NAME]["trials"][0].update(config="tsm2:threads=banana"),
    "a family of no configuration": lambda d: d[NAME]["trials"][0].update(family="tsm9"),
    "tunables of others": lambda d: d[NAME]["trials"][0].update(tunables='{"block_size_x":32}'),
    "a problem of no type": lambda d: d[NAME].update(problem="20480x16x20480:f99"),
    "a problem that is none": lambda d: d[NAME].update(problem=None),
    "a state that is none": lambda d: d[NAME].update(cache="cold"),
    "another state": lambda d: d[NAME].update(cache="dirty"),
    "a superseded trial": lambda d: d[NAME]["trials"][0].update(superseded=1),
    "interrupted": lambda d: d[NAME]["trials"][0].update(outcome="interrupted"),
    "right without a time": lambda d: d[NAME]["trials"][0].update(first=None),
    "right without a verdict": lambda d: d[NAME]["trials"][0].update(verdict_correct=0),
    "an error over the bound": lambda d: d[NAME]["trials"][0].update(verdict_worst_ratio=2.0),
    "samples of another time": lambda d: d[NAME]["trials"][0]["first"].update(samples_us=[1.0, 2.0, 3.0]),
    "no samples": lambda d: d[NAME]["trials"][0]["first"].update(samples_us=[]),
    "samples that are a text": lambda d: d[NAME]["trials"][0]["first"].update(samples_us="123"),
    "too many samples": lambda d: d[NAME]["trials"][0]["first"].update(samples_us=[500.0] * (MOST_SAMPLES + 1)),
    "a time below 0": lambda d: d[NAME]["trials"][0]["first"].update(median_us=-1.0),
    "a huge time": lambda d: d[NAME]["trials"][0]["first"].update(median_us=1e300),
    "a huge number": lambda d: d[NAME]["trials"][0].update(registers=10**400),
    "a text for a number": lambda d: d[NAME]["trials"][0].update(compile_seconds="2"),
    "a vendor that is none": lambda d: d[NAME]["rounds"][0]["vendor"][0].update(library="MKL"),
    "a vendor's samples": lambda d: d[NAME]["rounds"][0]["vendor"][0].update(samples_us=[1.0]),
    "half of a pair": lambda d: d[NAME]["trials"][0].update(detail="\ud800"),
    "a long detail": lambda d: d[NAME]["trials"][0].update(detail="x" * 2**20),
}


@pytest.mark.parametrize("what", EDITS)
def test_a_file_that_was_edited_is_refused(what: str, tuned: Path) -> None:
    file = written(tuned, T4)
    edited(file, EDITS[what])
    assert "is not as this tsm2-tune writes it (" in refused(file, tuned)


@pytest.mark.parametrize("member", ["time", "threads", "__error__", "timestamp"])
def test_a_cache_whose_entries_are_not_its_records_is_refused(member: str, tuned: Path) -> None:
    file = written(tuned, CACHE)
    edited(file, lambda found: [one.update({member: "x"}) for one in found["cache"].values()])
    assert "do not agree" in refused(file, tuned)


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
}


@pytest.mark.parametrize("what", TEXTS)
def test_a_damaged_text_is_refused(what: str, tuned: Path) -> None:
    file = written(tuned, T4)
    text = file.read_text()
    assert TEXTS[what](text) != text
    file.write_text(TEXTS[what](text))
    assert "is not as this tsm2-tune writes it (" in refused(file, tuned)


def test_bytes_that_are_no_text_are_refused(tuned: Path, tmp_path: Path) -> None:
    file = tmp_path / "bytes.json"
    file.write_bytes(b'{"tsm2_tune": "\xff"}')
    assert "is not as this tsm2-tune writes it (" in refused(file, tuned)


def test_of_a_large_file_no_more_is_read_than_such_files_have(
    tuned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "large.json"
    with file.open("wb") as large:
        large.write(b"{")
        large.truncate(10**9)
    assert f"has more than {reading.MOST_BYTES} bytes" in refused(file, tuned)
