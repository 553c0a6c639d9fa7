"""The Python API refuses what cannot be asked for, in the sentences of the command."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tsm2_tune
from tests.command import run

pytestmark = pytest.mark.usefixtures("no_driver")


@pytest.mark.parametrize(
    ("arguments", "call"),
    [
        (("--shapes", "8x8"), lambda: tsm2_tune.tune("8x8")),
        (("--shapes", "8x8x8", "--dtype", "f8"), lambda: tsm2_tune.tune("8x8x8", dtype="f8")),
        (("--shapes", "8x8x8", "--family", "tsm9"), lambda: tsm2_tune.tune("8x8x8", family="tsm9")),
        (("--shapes", "8x8x8", "--guidelines", "x=1"), lambda: tsm2_tune.tune("8x8x8", guidelines={"x": 1})),
        (("--shapes", "8x8x8", "--device", "tpu"), lambda: tsm2_tune.tune("8x8x8", device="tpu")),
        (("--shapes", "8x8x8", "--device", "0"), lambda: tsm2_tune.tune("8x8x8", device=0)),
        (("--shapes", "8x8x8", "--device", "h200"), lambda: tsm2_tune.tune("8x8x8", device="h200")),
        (("--device", "cpu", "--shapes", "1e9x64x64"), lambda: tsm2_tune.tune("1e9x64x64", device="cpu")),
        (("best", "--db", "none.db"), lambda: tsm2_tune.best("none.db")),
        (("space", "--device", "k80"), lambda: tsm2_tune.plan_space("8x8x8", device="k80")),
        (("export", "--db", "none.db", "--format", "csv", "--output", "-"),
         lambda: tsm2_tune.export("none.db", format="csv")),
        (("export", "--db", "none.db", "--format", "csv", "--output", "none.db"),
         lambda: tsm2_tune.export("none.db", format="csv", output="none.db")),
        (("export", "--db", "none.db", "--format", "library", "--output", "-"),
         lambda: tsm2_tune.export("none.db", format="library")),
    ],
)  # fmt: skip
def test_errors_are_the_sentences_of_the_command(
    arguments: tuple[str, ...], call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(tsm2_tune.TuneError) as caught:
        call()
    said = run(*arguments)
    assert said.exit_code == 2
    assert said.output == f"Error: {caught.value}\n"
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"budget": -1}, "budget = -1: expected seconds, above 0 and at most 1e"),
        ({"budget": float("nan")}, "budget = nan"),
        ({"budget": "10"}, "budget = '10': expected seconds"),
        ({"max_trials": 0}, "max_trials = 0: expected a whole number of at least 1"),
        ({"max_trials": 1.5}, "max_trials = 1.5: expected a whole number"),
        ({"seed": -1}, "seed = -1: expected a whole number of at least 0, at most 2147483647"),
        ({"run_limit": -1}, "run_limit = -1: expected seconds"),
        ({"compile_limit": 1e6}, "compile_limit = 1000000.0: expected seconds, above 0 and at most 86400"),
        ({"cache": "cold"}, "unknown cache 'cold': expected one of clean, dirty, warm"),
        ({"retry": ["slow"]}, "unknown outcome 'slow': expected one of compile-failed"),
        ({"family": "tsm2", "op": "ntt"}, "8x8x8:f32:ntt is computed by .*, not by tsm2"),
        ({"guidelines": {"min_reuse": -1}}, "guideline min_reuse=-1: expected a number of at least 0"),
        ({"guidelines": 0}, "guidelines = 0: expected a text, or a mapping from names to thresholds"),
        ({"budget": 10**400}, r"budget = 1000*\.\.\.: expected seconds"),
        ({"run_limit": 10**5000}, "run_limit = a number of thousands of digits: expected seconds"),
        ({"family": 1.5}, "family = 1.5: expected a text or several texts"),
        ({"retry": [1]}, r"retry = \[1\]: expected a text or several texts"),
    ],
)
def test_options_that_no_run_can_have_are_refused(options: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    with pytest.raises(tsm2_tune.InputError, match=complaint):
        tsm2_tune.tune("8x8x8", device="cpu", db=tmp_path / "r.db", **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"format": "xml"}, "unknown format 'xml': expected one of module, csv"),
        ({"format": "library", "binaries": False}, "a library consists of binaries"),
        ({"format": "csv", "wait": True}, "--no-measure and --wait are only for --within"),
        ({"format": "csv", "launcher": True}, "--launcher is only for a module"),
        ({"format": "csv", "between": True}, "--between is only for a module or a library"),
        ({"format": "module", "between": True, "within": 0.03}, "--between adds kernels"),
        ({"format": "csv", "within": -0.1}, "within = -0.1: expected a share from 0.0 to 1.0"),
        ({"format": "csv", "within": float("nan")}, "within = nan"),
        ({"format": "csv", "within": "3"}, "'3' is no percentage: expected at most 1000%, such as 3%"),
        ({"format": "csv", "within": 10**5000}, "within = a number of thousands of digits: expected a share"),
    ],
)
def test_exports_that_cannot_be_are_refused(options: dict[str, Any], complaint: str, database: str) -> None:
    with pytest.raises(tsm2_tune.InputError, match=complaint):
        tsm2_tune.export(database, **options)


@pytest.mark.parametrize("name", ["", "a\0b", "a\ud800b", ".", "x" * 300, "file/below"])
def test_a_name_that_is_no_file_is_a_sentence(
    name: str, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    store, asked = tsm2_tune.StoreError, tsm2_tune.InputError
    calls: list[tuple[type[tsm2_tune.TuneError], Callable[[], object]]] = [
        (store, lambda: tsm2_tune.best(name)),
        (store, lambda: tsm2_tune.tune("8x8x8", device="cpu", db=name)),
        (store, lambda: tsm2_tune.export(name, format="csv", output="out.csv")),
        (asked, lambda: tsm2_tune.export(database, format="csv", output=name)),
        (asked, lambda: tsm2_tune.import_trials(name, "into.db")),
        (store, lambda: tsm2_tune.import_trials(database, name)),
        (asked, lambda: tsm2_tune.problems(f"@{name}")),
    ]
    for error, call in calls:
        with pytest.raises(error) as caught:
            call()
        assert "\n" not in str(caught.value)
    assert sorted(os.listdir(tmp_path)) == ["file", Path(database).name]
