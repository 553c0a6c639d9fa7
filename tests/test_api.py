"""The Python API: what is public, how it is called, that it is what the command does, and what it refuses."""

from __future__ import annotations

import ast
import inspect
import json
import os
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import tsm2_tune
from tests.command import loaded_modules, refused, run
from tests.databases import database_of
from tests.fabricated import configuration, host_run, trial
from tests.modules import loaded
from tsm2_tune.api.parse import dtype_texts
from tsm2_tune.api.tune import options_of
from tsm2_tune.generator.device.cards import PROFILES

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_driver")]

ROOT = Path(__file__).parents[1]
PROBLEMS = (
    tsm2_tune.Problem(20480, 16, 20480, "f32"),
    tsm2_tune.Problem(10**7, 8, 8, "f32"),
    tsm2_tune.Problem(20480, 16, 20480, "f64"),
)

PATIENCE: dict[str, Any] = {
    "max_trials": None, "compile_limit": 1, "run_limit": 1, "cache": "dirty", "retry": None, "seed": 0
}  # fmt: skip
BFLOAT16 = type("bfloat16", (np.generic,), {})  # like the type of ml_dtypes
LONG = 10**5000
NO_FILE = "= None: expected the name of a file"
SHARE = "expected a share from 0.0 to 1.0, such as 0.03, or a percentage as text, such as '3%'"


@pytest.fixture
def of_problems(path: Path) -> str:
    """A database with a winner of each problem."""
    return database_of(
        path, *(trial(500.0 + number, configuration(128), problem=problem) for number, problem in enumerate(PROBLEMS))
    )


@pytest.fixture(scope="module")
def drawing() -> ModuleType:
    """The script that draws the reference."""
    return loaded(ROOT / "docs/reference.py")


# Public names


def test_type_checkers_are_told_the_same_places() -> None:
    tree = ast.parse(Path(tsm2_tune.__file__).read_text())
    told = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tsm2_tune.")
        for alias in node.names
    }
    assert told == tsm2_tune._HOME
    with pytest.raises(AttributeError, match="module 'tsm2_tune' has no attribute 'tuned'"):
        _ = tsm2_tune.tuned  # type: ignore[attr-defined]


def test_importing_loads_nothing_until_a_name_is_used() -> None:
    heavy = {"click", "jinja2", "numpy", "rich", "sqlalchemy", "importlib.metadata", "typing"}
    before = loaded_modules("pass")
    assert not (loaded_modules("import tsm2_tune") - before) & heavy
    used = loaded_modules("import tsm2_tune; tsm2_tune.plan_space('64x4x64', device='h200'); tsm2_tune.tune")
    assert not {name.partition(".")[0] for name in used} & {"click", "rich", "pycuda", "pynvml"}


# Documentation


@pytest.mark.parametrize("name", ["api.md", "cli.md"])
def test_the_references_are_drawn_from_the_code(name: str, drawing: ModuleType) -> None:
    page = (ROOT / "docs" / name).read_text()
    assert drawing.page(page) == page, f"docs/{name} is not what the code says: python docs/reference.py"


def test_the_reference_has_every_public_name_once(drawing: ModuleType) -> None:
    names = [name for group in drawing.GROUPS.values() for name in group]
    assert sorted([*names, "__version__"]) == sorted(tsm2_tune.__all__)
    assert set(names) <= set(dir(tsm2_tune))


def test_records_do_not_change_and_every_field_is_described(drawing: ModuleType) -> None:
    public = (getattr(tsm2_tune, name) for name in tsm2_tune.__all__)
    records = [one for one in public if isinstance(one, type) and not issubclass(one, Exception)]
    assert len(records) > 30
    for record in records:
        assert issubclass(record, Enum) or record.__dataclass_params__.frozen  # type: ignore[attr-defined]
        listed = [*drawing.fields(record), *drawing.properties(record), *drawing.makers(record)]
        assert [line for line in listed if line.endswith(": ")] == []
    assert all("__str__" in vars(event) for event in (*tsm2_tune.Event.__args__, *tsm2_tune.ExportEvent.__args__))


def test_every_argument_is_described(drawing: ModuleType) -> None:
    for name in drawing.GROUPS["Functions"]:
        function = getattr(tsm2_tune, name)
        assert function.__doc__ is not None
        for argument in inspect.signature(function).parameters:
            assert f"`{argument}`" in function.__doc__, (name, argument)


# Texts or records


@pytest.mark.parametrize(
    ("products", "options", "texts"),
    [
        ("8x2x8,9x2x9", {"dtype": "f32,f64"}, ["8x2x8:f32", "8x2x8:f64", "9x2x9:f32", "9x2x9:f64"]),
        (["8x2x8", "9x2x9"], {"dtype": ["f64"]}, ["8x2x8:f64", "9x2x9:f64"]),
        ("8x2/4x8", {"layout": "row"}, ["8x2x8:f32:ttt", "8x4x8:f32:ttt"]),
        ("8x2x8", {"op": ["nn", "tn"]}, ["8x2x8:f32", "8x2x8:f32:tn"]),
        ("8x8x9", {"op": "gram", "dtype": "c64"}, ["8x8x9:c64:cx"]),
        ("8x2x8:f64:tn", {"layout": "row"}, ["8x2x8:f64:tn"]),
        ([PROBLEMS[0], "8x2x8"], {"dtype": "f64"}, [PROBLEMS[0].text, "8x2x8:f64"]),
        (("1024 x 8 x 64", PROBLEMS[0], PROBLEMS[0]), {"math": "tf32"}, ["1024x8x64:tf32", PROBLEMS[0].text]),
    ],
)
def test_products_are_texts_or_problems(products: Any, options: dict[str, Any], texts: list[str]) -> None:
    assert [problem.text for problem in tsm2_tune.problems(products, **options)] == texts


@pytest.mark.parametrize(
    ("products", "options", "complaint"),
    [
        ([], {}, "no product: name one"),
        ((8, 2, 8), {}, r"product 8: expected a text, such as '20480x16x20480', or a Problem"),
        ("8x2x8", {"layout": "diagonal"}, "unknown layout 'diagonal': expected one of column, row"),
        ("8x2x8", {"math": "half"}, "unknown math 'half': expected one of full, tf32"),
    ],
)
def test_what_is_neither_is_refused(products: Any, options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(tsm2_tune.InputError, match=complaint):
        tsm2_tune.problems(products, **options)


# The command


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        ({"products": "20480x16x20480"}, ("--shapes", "20480x16x20480")),
        ({"products": PROBLEMS[1]}, ("--shapes", PROBLEMS[1].text)),
        ({"dtype": ["f64"]}, ("--dtype", "f64")),
        ({"cache": "clean", "op": "nn"}, ("--cache", "clean", "--op", "nn")),
        ({"device": "nvidia"}, ("--device", "nvidia")),
    ],
)
def test_best_is_what_the_command_prints(
    options: dict[str, Any], arguments: tuple[str, ...], of_problems: str
) -> None:
    rows = tsm2_tune.best(of_problems, **options)
    printed = json.loads(run("best", "--db", of_problems, "--json", *arguments).output)["best"]
    assert [(row.problem.text, row.config, row.median_us) for row in rows] == [
        (f"{one['m']}x{one['n']}x{one['k']}:{one['dtype']}", one["config"], one["median_us"]) for one in printed
    ]
    assert rows
    assert tsm2_tune.best(Path(of_problems), products="8x8x8") == ()


@pytest.mark.usefixtures("fake_nvcc")
@pytest.mark.parametrize("format", ["module", "csv", "json", "markdown", "latex"])
def test_export_makes_what_the_command_writes(format: str, of_problems: str, tmp_path: Path) -> None:
    ours, theirs, notes = tmp_path / "ours.py", tmp_path / "theirs.py", list[Any]()
    which: dict[str, Any] = {"format": format, "dtype": "f32"}
    exported = tsm2_tune.export(of_problems, output=ours, on_event=notes.append, **which)
    command = ("export", "--db", of_problems, "--format", format, "--output", str(theirs), "--dtype", "f32")
    said = run(*command)
    assert exported.files == (ours,)
    assert exported.text is not None
    assert ours.read_bytes() == theirs.read_bytes() == exported.text.encode()
    assert [*map(str, notes), f"wrote {theirs}: {exported.counts}"] == said.output.splitlines()
    assert tsm2_tune.export(of_problems, **which) == tsm2_tune.Exported((), exported.text, exported.winners)


def test_the_fewest_kernels_are_told(of_problems: str) -> None:
    events = list[Any]()
    exported = tsm2_tune.export(of_problems, format="json", within=0.03, measure=False, on_event=events.append)
    assert exported.text is not None
    assert len(json.loads(exported.text)["best"]) == len(PROBLEMS)
    assert [type(event).__name__ for event in events] == ["KernelsChosen", "KernelsChosen"]
    assert str(events[0]) == "f32 nn: kernels: 1, for shapes: 2"
    assert events[0].unmeasured_because == "--no-measure"


def test_a_space_is_what_the_command_counts() -> None:
    space = tsm2_tune.plan_space(
        "20480x16x20480", dtype="f64", device="h200", family=["tsm2", "stream_a_fma"], guidelines={"min_reuse": 2}
    )
    arguments = ("--shapes", "20480x16x20480", "--dtype", "f64", "--device", "h200", "--family", "tsm2,stream_a_fma")
    (printed,) = json.loads(run("space", *arguments, "--guidelines", "min-reuse=2", "--json").output)
    assert (len(space.kept), space.total) == (printed["kept"], printed["total"])
    again = tsm2_tune.plan_space(
        space.problem, device=PROFILES["h200"], family="tsm2,stream_a_fma", guidelines="min-reuse=2"
    )
    assert [one.config for one in again.kept] == [one.config for one in space.kept]
    with pytest.raises(tsm2_tune.InputError, match=r"'8x2/4x8' names 2 problems: plan the space of one at a time"):
        tsm2_tune.plan_space("8x2/4x8", device="h200")


# Arguments


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


def test_problems_and_winners_are_of_types_of_numpy(of_problems: str) -> None:
    assert [one.text for one in tsm2_tune.problems("8x2x8", dtype=np.float64)] == ["8x2x8:f64"]
    assert [row.problem for row in tsm2_tune.best(of_problems, dtype=np.float64)] == [PROBLEMS[2]]


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
        (lambda db: tsm2_tune.best(None), f"db {NO_FILE}"),  # type: ignore[arg-type]
        (lambda db: tsm2_tune.import_trials(None), f"source {NO_FILE}"),  # type: ignore[arg-type]
        (lambda db: tsm2_tune.import_trials(db, 3), "db = 3: expected the name of a file"),  # type: ignore[arg-type]
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
        (exporting(within=-0.1), f"within = -0.1: {SHARE}"),
        (exporting(within=float("nan")), f"within = nan: {SHARE}"),
        (exporting(within=LONG), "within = a number of thousands of digits: expected a share"),
        (exporting(within="3"), "'3' is no percentage: expected at most 1000%, such as 3%"),
        (tuning(budget=-1), "budget = -1: expected seconds, above 0 and at most 1e"),
        (tuning(budget=10**400), f"budget = 1{'0' * 36}"),
        (tuning(run_limit=LONG), "run_limit = a number of thousands of digits: expected seconds"),
        (tuning(compile_limit=1e6), "compile_limit = 1000000.0: expected seconds, above 0 and at most 86400"),
        (tuning(max_trials=0), "max_trials = 0: expected a whole number of at least 1"),
        (tuning(max_trials=1.5), "max_trials = 1.5: expected a whole number"),
        (tuning(seed=-1), "seed = -1: expected a whole number of at least 0, at most 2147483647"),
        (tuning(cache="cold"), "unknown cache 'cold': expected one of clean, dirty, warm"),
        (tuning(retry=["slow"]), "unknown outcome 'slow': expected one of compile-failed"),
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
        assert "20480" in str(exported.text)
    arguments = ("export", "--db", database, "--format", "csv", "--output", "-", "--no-measure", "--within")
    if isinstance(share, str):
        assert run(*arguments, share).exit_code == (0 if is_taken else 2)


def test_a_library_of_a_hosts_winners_is_none(path: Path) -> None:
    database_of(path, trial(), run=host_run())
    result = refused("export", "--format", "library", "--output", str(path.with_suffix(".so")), "--db", str(path))
    assert f"{path} has only winners of the host for what was asked" in result
