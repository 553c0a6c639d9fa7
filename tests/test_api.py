"""The Python API: what is public, how it is called, and that it is what the command does."""

from __future__ import annotations

import ast
import inspect
import json
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import tsm2_tune
from tests.command import loaded_modules, run
from tests.databases import database_of
from tests.fabricated import configuration, trial
from tests.modules import loaded
from tsm2_tune.generator.device.cards import PROFILES

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_driver")]

ROOT = Path(__file__).parents[1]
PROBLEMS = (
    tsm2_tune.Problem(20480, 16, 20480, "f32"),
    tsm2_tune.Problem(10**7, 8, 8, "f32"),
    tsm2_tune.Problem(20480, 16, 20480, "f64"),
)


@pytest.fixture
def database(path: Path) -> str:
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
    assert set(told) | {"__version__"} == set(tsm2_tune.__all__)


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
        ("8x2x8", {}, ["8x2x8:f32"]),
        ("8x2x8,9x2x9", {"dtype": "f32,f64"}, ["8x2x8:f32", "8x2x8:f64", "9x2x9:f32", "9x2x9:f64"]),
        (["8x2x8", "9x2x9"], {"dtype": ["f64"]}, ["8x2x8:f64", "9x2x9:f64"]),
        ("8x2/4x8", {"layout": "row"}, ["8x2x8:f32:ttt", "8x4x8:f32:ttt"]),
        ("8x2x8", {"op": ["nn", "tn"]}, ["8x2x8:f32", "8x2x8:f32:tn"]),
        ("8x8x9", {"op": "gram", "dtype": "c64"}, ["8x8x9:c64:cx"]),
        ("8x2x8:f64:tn", {"layout": "row"}, ["8x2x8:f64:tn"]),
        ([PROBLEMS[0], "8x2x8"], {"dtype": "f64"}, [PROBLEMS[0].text, "8x2x8:f64"]),
        ((PROBLEMS[0], PROBLEMS[0]), {}, [PROBLEMS[0].text]),
        ("8x2x8", {"math": "tf32"}, ["8x2x8:tf32"]),
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
        ({}, ()),
        ({"products": "20480x16x20480"}, ("--shapes", "20480x16x20480")),
        ({"products": PROBLEMS[1]}, ("--shapes", PROBLEMS[1].text)),
        ({"dtype": ["f64"]}, ("--dtype", "f64")),
        ({"cache": "clean", "op": "nn"}, ("--cache", "clean", "--op", "nn")),
        ({"device": "nvidia"}, ("--device", "nvidia")),
    ],
)
def test_best_is_what_the_command_prints(options: dict[str, Any], arguments: tuple[str, ...], database: str) -> None:
    rows = tsm2_tune.best(database, **options)
    printed = json.loads(run("best", "--db", database, "--json", *arguments).output)["best"]
    assert [(row.problem.text, row.config, row.median_us) for row in rows] == [
        (f"{one['m']}x{one['n']}x{one['k']}:{one['dtype']}", one["config"], one["median_us"]) for one in printed
    ]
    assert rows


def test_nothing_that_was_asked_for_is_no_error(database: str) -> None:
    assert tsm2_tune.best(Path(database), products="8x8x8") == ()


@pytest.mark.usefixtures("fake_nvcc")
@pytest.mark.parametrize("format", ["module", "csv", "json", "markdown", "latex"])
def test_export_makes_what_the_command_writes(format: str, database: str, tmp_path: Path) -> None:
    ours, theirs, notes = tmp_path / "ours.py", tmp_path / "theirs.py", list[Any]()
    which: dict[str, Any] = {"format": format, "dtype": "f32"}
    exported = tsm2_tune.export(database, output=ours, on_event=notes.append, **which)
    command = ("export", "--db", database, "--format", format, "--output", str(theirs), "--dtype", "f32")
    said = run(*command)
    assert exported.files == (ours,)
    assert exported.text is not None
    assert ours.read_bytes() == theirs.read_bytes() == exported.text.encode()
    assert [*map(str, notes), f"wrote {theirs}: {exported.counts}"] == said.output.splitlines()
    assert tsm2_tune.export(database, **which) == tsm2_tune.Exported((), exported.text, exported.winners)


def test_the_fewest_kernels_are_told(database: str) -> None:
    events = list[Any]()
    exported = tsm2_tune.export(database, format="json", within=0.03, measure=False, on_event=events.append)
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
