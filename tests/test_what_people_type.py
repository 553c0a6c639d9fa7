"""Common spellings and habits work, or are refused with the spelling that works."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tests.command import run
from tsm2_tune.cli import EXAMPLES, main
from tsm2_tune.commands.errors import Option
from tsm2_tune.commands.options import Seconds
from tsm2_tune.errors import pip_install

pytestmark = pytest.mark.usefixtures("no_driver")


def test_alone_it_shows_four_examples_that_parse() -> None:
    result = run()
    assert (result.exit_code, result.output) == (0, f"{EXAMPLES}\n")
    assert result.output.count("\n  tsm2-tune ") == 4


def test_a_budget_may_have_a_unit() -> None:
    seconds = {"90": 90, "90s": 90, "2m": 120, "1.5h": 5400, "1e2": 100, "2 min": 120, ".5": 0.5}
    assert {typed: Seconds(min=0).convert(typed, None, None) for typed in seconds} == seconds


@pytest.mark.slow
@pytest.mark.parametrize("command", [("best",), ("db", "check"), ("report",), ("quarantine",), ("db", "vacuum")])
def test_a_database_may_be_an_argument(
    command: tuple[str, ...], database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(database).parent)
    pytest.importorskip("vl_convert")
    assert run(*command, database).exit_code == 0
    twice = run(*command, database, "--db", "other.db")
    assert (twice.exit_code, "named twice" in twice.output) == (2, True)
    assert (command == ("report",)) == Path("report.html").exists()


def test_the_ending_of_a_file_says_the_format(database: str, tmp_path: Path) -> None:
    beginnings = {".csv": "device,", ".json": "{", ".md": "## ", ".tex": "\\begin{table}", ".jsonl": "{"}
    for ending, beginning in beginnings.items():
        output = tmp_path / f"best{ending}"
        done = run("export", "--db", database, "-o", str(output))
        assert (done.exit_code, output.read_text()[: len(beginning)]) == (0, beginning), done.output


@pytest.mark.parametrize(
    "words",
    ["64x4x64 8x8x8", "64x4x64 --shapes 8x8x8", "@shapes.txt", "64x4x64,8x8x8 --dtype f32 --dtype f64 --json"],
)
def test_shapes_may_be_arguments_and_lists_are_joined(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("shapes.txt").write_text("64x4x64\n8x8x8\n")
    found = json.loads(run("space", "--device", "h100", *words.split(), "--json").output)
    dtypes = ("f32", "f64") if "f64" in words else ("f32",)
    assert [one["problem"] for one in found] == [f"{shape}:{one}" for shape in ("64x4x64", "8x8x8") for one in dtypes]


@pytest.mark.parametrize("is_own", [True, False])
def test_a_missing_package_is_installed_by_the_pip_of_this_python(
    is_own: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip = tmp_path / "pip"
    pip.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    python = str(tmp_path / "python") if is_own else sys.executable
    monkeypatch.setattr(sys, "executable", python)
    assert pip_install("a[b]") == f"{'pip' if is_own else f'{python} -m pip'} install 'a[b]'"


def test_a_space_without_a_shape_says_which_one_it_shows() -> None:
    shown = run("space", "--device", "h100", "--family", "tsm2")
    assert (shown.exit_code, "no shape is named: this is 8192x8192x8192" in shown.stderr) == (0, True)
    assert run("space", "8x8x8", "--device", "h100", "--family", "tsm2").stderr == ""


def test_no_option_drops_a_value_silently() -> None:
    def every(group: click.Group = main) -> Iterator[click.Command]:
        for command in group.commands.values():
            yield from (command, *(every(command) if isinstance(command, click.Group) else ()))

    options = [one for command in every() for one in command.params if isinstance(one, click.Option)]
    assert len(options) > 100
    assert all(isinstance(one, Option) for one in options)


def test_a_configuration_is_typed_as_best_prints_it() -> None:
    found = run("source", "row_lanes_register_b:threads=128,vector_bytes=4,lanes=1,columns=1,rows=2,min_blocks=2")
    assert (found.exit_code, found.stderr) == (0, "for --layout row\n")
    assert "A, B, C row-major" in found.stdout
