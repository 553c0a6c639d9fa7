"""The Python API and the command refuse arguments in one sentence that names the argument."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tsm2_tune
from tests.command import refused, run
from tests.databases import database_of
from tests.fabricated import PROBLEM, host_run, trial
from tsm2_tune.api.parse import dtype_texts
from tsm2_tune.api.tune import options_of

pytestmark = pytest.mark.usefixtures("no_driver")

PATIENCE: dict[str, Any] = {
    "max_trials": None, "compile_limit": 1, "run_limit": 1, "cache": "dirty", "retry": None, "seed": 0
}  # fmt: skip
BFLOAT16 = type("bfloat16", (np.generic,), {})  # like the type of ml_dtypes
LONG = 10**5000
NO_FILE = "= None: expected the name of a file"
SHARE = "expected a share from 0.0 to 1.0, such as 0.03, or a percentage as text, such as '3%'"


@pytest.mark.parametrize(("budget", "seconds"), [(None, None), (0, None), (0.0, None), (7, 7.0)])
def test_a_budget_of_nothing_is_no_limit(budget: float | None, seconds: float | None) -> None:
    assert options_of(budget=budget, **PATIENCE).budget_seconds == seconds


@pytest.mark.parametrize(
    ("dtype", "names"),
    [
        ("f32, f64", "f32, f64"),
        (np.float32, "f32"),
        (np.dtype("complex64"), "c64"),
        ([np.float64, "f16", np.dtype(np.complex128)], "f64,f16,c128"),
        (np.half, "f16"),
        (BFLOAT16, "bf16"),
    ],
)
def test_types_of_numpy_are_element_types(dtype: Any, names: str) -> None:
    assert dtype_texts(dtype) == names


def test_problems_and_winners_are_of_types_of_numpy(database: str) -> None:
    assert [one.text for one in tsm2_tune.problems("8x2x8", dtype=np.float64)] == ["8x2x8:f64"]
    space = tsm2_tune.plan_space("64x4x64", dtype=np.float64, device="h200", family="tsm2")
    assert space.problem.dtype_name == "f64"
    assert [row.problem for row in tsm2_tune.best(database, dtype=np.float32)] == [PROBLEM]
    assert tsm2_tune.best(database, dtype=[np.float64]) == ()


@pytest.mark.parametrize(
    ("arguments", "call"),
    [
        (("--shapes", "8x8"), lambda: tsm2_tune.tune("8x8")),
        (("--shapes", "8x8x8", "--guidelines", "x=1"), lambda: tsm2_tune.tune("8x8x8", guidelines={"x": 1})),
        (("--shapes", "8x8x8", "--device", "0"), lambda: tsm2_tune.tune("8x8x8", device=0)),
        (("best", "--db", "none.db"), lambda: tsm2_tune.best("none.db")),
        (("space", "--device", "k80"), lambda: tsm2_tune.plan_space("8x8x8", device="k80")),
        (("export", "--db", "none.db", "--format", "csv", "--output", "none.db"),
         lambda: tsm2_tune.export("none.db", format="csv", output="none.db")),
    ],
)  # fmt: skip
def test_errors_are_the_sentences_of_the_command(
    arguments: tuple[str, ...], call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(tsm2_tune.TuneError) as caught:
        call()
    said = run(*arguments)
    assert (said.exit_code, said.output) == (2, f"Error: {caught.value}\n")
    assert os.listdir(tmp_path) == []


def tuning(**options: Any) -> Callable[[str], object]:
    return lambda db: tsm2_tune.tune("8x8x8", **{"device": "cpu", "db": "r.db"} | options)


def exporting(**options: Any) -> Callable[[str], object]:
    return lambda db: tsm2_tune.export(db, **{"format": "csv"} | options)


def products(**options: Any) -> Callable[[str], object]:
    return lambda db: tsm2_tune.problems("8x8x8", **options)


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (products(dtype=np.int32), "unknown dtype 'int32': expected one of f32"),
        (products(dtype=float), "dtype = <class 'float'>: expected a text, a NumPy"),
        (products(op=1), "op = 1: expected a text or several texts"),
        (lambda db: tsm2_tune.best(db, op=1), "op = 1: expected a text or several texts"),  # type: ignore[arg-type]
        (lambda db: tsm2_tune.best(None), f"db {NO_FILE}"),  # type: ignore[arg-type]
        (lambda db: tsm2_tune.import_trials(None), f"source {NO_FILE}"),  # type: ignore[arg-type]
        (lambda db: tsm2_tune.import_trials(db, 3), "db = 3: expected the name of a file"),  # type: ignore[arg-type]
        (lambda db: tsm2_tune.export(None, format="csv"), f"db {NO_FILE}"),  # type: ignore[arg-type]
        (exporting(output=3), "output = 3: expected the name of a file"),
        (exporting(on_event=3), "on_event = 3: expected a function, or None"),
        (exporting(format="xml"), "unknown format 'xml': expected one of module, csv"),
        (exporting(format="library"), "a library is binary: name a file that ends in .so"),
        (
            exporting(format="library", binaries=False),
            "--no-binaries is only for a module: a library consists of binaries",
        ),
        (exporting(wait=True), "--no-measure and --wait are only for --within"),
        (exporting(launcher=True), "--launcher is only for a module"),
        (exporting(between=True), "--between is only for a module or a library: leave it out with --format csv"),
        (exporting(format="module", between=True, within=0.03), "--between adds kernels, but --within chooses"),
        (exporting(within=1), f"within = 1: {SHARE}"),
        (exporting(within=1.5), f"within = 1.5: {SHARE}"),
        (exporting(within=-0.1), f"within = -0.1: {SHARE}"),
        (exporting(within=float("nan")), f"within = nan: {SHARE}"),
        (exporting(within=LONG), "within = a number of thousands of digits: expected a share"),
        (exporting(within="3"), "'3' is no percentage: expected at most 1000%, such as 3%"),
        (tuning(db=None), f"db {NO_FILE}"),
        (tuning(on_event=3), "on_event = 3: expected a function, or None"),
        (tuning(budget=-1), "budget = -1: expected seconds, above 0 and at most 1e"),
        (tuning(budget=10**400), f"budget = 1{'0' * 36}"),
        (tuning(run_limit=LONG), "run_limit = a number of thousands of digits: expected seconds"),
        (tuning(compile_limit=1e6), "compile_limit = 1000000.0: expected seconds, above 0 and at most 86400"),
        (tuning(max_trials=0), "max_trials = 0: expected a whole number of at least 1"),
        (tuning(max_trials=1.5), "max_trials = 1.5: expected a whole number"),
        (tuning(seed=-1), "seed = -1: expected a whole number of at least 0, at most 2147483647"),
        (tuning(cache="cold"), "unknown cache 'cold': expected one of clean, dirty, warm"),
        (tuning(retry=["slow"]), "unknown outcome 'slow': expected one of compile-failed"),
        (tuning(retry=[1]), "retry = [1]: expected a text or several texts"),
        (tuning(family=1.5), "family = 1.5: expected a text or several texts"),
        (tuning(guidelines={"min_reuse": -1}), "guideline min_reuse=-1: expected a number of at least 0"),
        (tuning(guidelines=0), "guidelines = 0: expected a text, or a mapping from names to thresholds"),
    ],
)
def test_an_argument_that_cannot_be_is_named(
    call: Any, complaint: str, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(tsm2_tune.InputError) as caught:
        call(database)
    assert str(caught.value).startswith(complaint)
    assert [file.name for file in tmp_path.iterdir()] == [Path(database).name]


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


@pytest.mark.parametrize(
    ("share", "is_taken"), [(0, True), (0.03, True), (1.0, True), ("3%", True), ("1000%", True), ("1001%", False)]
)
def test_a_share_is_a_number_up_to_one_or_a_text(share: Any, is_taken: bool, database: str) -> None:
    if is_taken:
        exported = tsm2_tune.export(database, format="csv", within=share, measure=False)
        assert PROBLEM.shape.split("x")[0] in str(exported.text)
    arguments = ("export", "--db", database, "--format", "csv", "--output", "-", "--no-measure", "--within")
    if isinstance(share, str):
        assert run(*arguments, share).exit_code == (0 if is_taken else 2)


@pytest.mark.parametrize("text", ["1024 x 8 x 64", "1024x8 X64", " 1024 x8x 64 "])
def test_spaces_may_be_around_an_x(text: str, tmp_path: Path) -> None:
    file = tmp_path / "shapes.txt"
    file.write_text(f"{text} # a comment\n8 x 2 x 8:f64:tn\n")
    assert [one.text for one in tsm2_tune.problems(text)] == ["1024x8x64:f32"]
    assert [one.text for one in tsm2_tune.problems(f"@{file}")] == ["1024x8x64:f32", "8x2x8:f64:tn"]


def test_a_library_of_a_hosts_winners_is_none(path: Path) -> None:
    database_of(path, trial(), run=host_run())
    result = refused("export", "--format", "library", "--output", str(path.with_suffix(".so")), "--db", str(path))
    assert f"{path} has only winners of the host for what was asked" in result
