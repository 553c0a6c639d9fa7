"""Tests of the arguments of the Python API and the command, and of messages about wrong ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tsm2_tune
from tests.command import refused, run
from tests.databases import database_of
from tests.fabricated import PROBLEM, configuration, host_run, trial
from tsm2_tune.api.parse import MOST_WITHIN, dtype_texts, share_of
from tsm2_tune.api.tune import options_of

pytestmark = pytest.mark.usefixtures("no_driver")

PATIENCE: dict[str, Any] = {
    "max_trials": None, "compile_limit": 1, "run_limit": 1, "cache": "dirty", "retry": None, "seed": 0
}  # fmt: skip
OF_LIBRARY = ("export", "--format", "library", "--output")
BFLOAT16 = type("bfloat16", (np.generic,), {})  # like the type of ml_dtypes


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
    ("call", "complaint"),
    [
        (lambda db: tsm2_tune.problems("8x8x8", dtype=np.int32), "unknown dtype 'int32': expected one of f32"),
        (lambda db: tsm2_tune.problems("8x8x8", dtype=float), "dtype = <class 'float'>: expected a text, a NumPy"),  # type: ignore[arg-type]
        (lambda db: tsm2_tune.problems("8x8x8", dtype=32), "dtype = 32: expected a text, a NumPy type, or sev"),  # type: ignore[arg-type]
        (lambda db: tsm2_tune.problems("8x8x8", op=1), "op = 1: expected a text or several texts"),  # type: ignore[arg-type]
        (lambda db: tsm2_tune.best(db, op=1), "op = 1: expected a text or several texts"),  # type: ignore[arg-type]
        (lambda db: tsm2_tune.best(None), "db = None: expected the name of a file"),  # type: ignore[arg-type]
        (lambda db: tsm2_tune.export(None, format="csv"), "db = None: expected the name of a file"),  # type: ignore[arg-type]
        (lambda db: tsm2_tune.export(db, format="csv", output=3), "output = 3: expected the name of a file"),  # type: ignore[arg-type]
        (lambda db: tsm2_tune.export(db, format="csv", on_event=3), "on_event = 3: expected a function, or None"),  # type: ignore[arg-type]
        (lambda db: tsm2_tune.export(db, format="library"), "a library is binary: name a file that ends in .so"),
        (lambda db: tsm2_tune.export(db, format="csv", within=3),
         "within = 3: expected a share from 0.0 to 1.0, such as 0.03, or a percentage as text, such as '3%'"),
        (lambda db: tsm2_tune.export(db, format="csv", within=1), "within = 1: expected"),
        (lambda db: tsm2_tune.export(db, format="csv", within=1.5), "within = 1.5: expected"),
        (lambda db: tsm2_tune.tune("8x8x8", device="cpu", db=None), "db = None: expected the name of a file"),  # type: ignore[arg-type]
        (lambda db: tsm2_tune.tune("8x8x8", device="cpu", on_event=3), "on_event = 3: expected a function, or None"),  # type: ignore[arg-type]
        (lambda db: tsm2_tune.import_trials(None), "source = None: expected the name of a file"),  # type: ignore[arg-type]
        (lambda db: tsm2_tune.import_trials(db, 3), "db = 3: expected the name of a file"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_an_argument_that_cannot_be_is_named(
    call: Any, complaint: str, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(tsm2_tune.InputError) as caught:
        call(database)
    assert str(caught.value).startswith(complaint)
    assert [file.name for file in tmp_path.iterdir()] == [Path(database).name]


@pytest.mark.parametrize("within", [0, 0.0, 0.03, 1.0, "3%", "1000%"])
def test_a_share_is_a_number_up_to_one_or_a_text(within: Any, database: str) -> None:
    exported = tsm2_tune.export(database, format="csv", within=within, measure=False)
    assert exported.text is not None
    assert PROBLEM.shape.split("x")[0] in exported.text


def test_within_is_of_the_command_what_its_text_says(database: str) -> None:
    arguments = ("export", "--db", database, "--format", "csv", "--output", "-", "--no-measure", "--within")
    assert run(*arguments, "1000%").exit_code == 0
    assert run(*arguments, "1001%").exit_code == 2
    assert share_of("1000%", MOST_WITHIN) == 10


def test_no_product_is_worth_more_than_all() -> None:
    assert "'200%' is no percentage: expected at most 100%, such as 3%" in refused(
        "record", "--output", "-", "--worth", "200%", "--", "true"
    )


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--shapes", "8x8x8", "--family", "tsm"), "unknown family 'tsm': expected one of"),
        (("source", "tsm3:version=v3,threads=128"), "unknown family 'tsm3': expected one of"),
        (("space", "--guidelines", "min_reus=1"), "unknown guideline 'min-reus': expected one of"),
        (("--shapes", "8x8x8", "--retry", "crash"), "unknown outcome 'crash': expected one of"),
        (("forget", "--outcome", "time-out"), "unknown outcome 'time-out': expected one of"),
    ],
)
def test_of_a_misspelt_name_the_nearest_is_named(arguments: tuple[str, ...], complaint: str) -> None:
    result = refused(*arguments)
    assert complaint in result
    assert "; did you mean " in result


@pytest.mark.parametrize("text", ["1024 x 8 x 64", "1024x8 X64", " 1024 x8x 64 "])
def test_spaces_may_be_around_an_x(text: str, tmp_path: Path) -> None:
    file = tmp_path / "shapes.txt"
    file.write_text(f"{text} # a comment\n8 x 2 x 8:f64:tn\n")
    assert [one.text for one in tsm2_tune.problems(text)] == ["1024x8x64:f32"]
    assert [one.text for one in tsm2_tune.problems(f"@{file}")] == ["1024x8x64:f32", "8x2x8:f64:tn"]


def test_a_spelling_of_many_configurations_has_no_source() -> None:
    spelling = "stream_a_fma:threads=64,columns=8,prefetch=16,stages=4,splits=*,row_tiles=*"
    result = run("source", spelling)
    assert (result.exit_code, result.output) == (
        2,
        f"Error: configuration {spelling!r}: * stands for any launch number, but source prints only one"
        " configuration: replace * by a number\n",
    )


def test_a_library_of_a_hosts_winners_is_none(path: Path) -> None:
    database_of(path, trial(500.0, configuration()), run=host_run())
    result = refused(*OF_LIBRARY, str(path.with_suffix(".so")), "--db", str(path))
    assert f"{path} has only winners of the host for what was asked" in result
    assert "and a library holds a GPU's kernels" in result
