"""Common spellings and habits work, or are refused with the spelling that works."""

from __future__ import annotations

import json
import re
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
from tsm2_tune.tuner.device import cuda

pytestmark = pytest.mark.usefixtures("no_driver")


def test_alone_it_shows_four_examples_that_parse() -> None:
    result = run()
    assert (result.exit_code, result.output) == (0, f"{EXAMPLES}\n")
    assert result.output.count("\n  tsm2-tune ") == 4


def test_help_lists_commands_before_options() -> None:
    shown = run("--help").output
    assert shown.index("Commands:") < shown.index("Options:")
    assert "..." not in shown.partition("Commands:")[2]


@pytest.mark.parametrize("command", [(), ("tune",)])
def test_tune_is_a_command_and_what_is_done_without_one(command: tuple[str, ...]) -> None:
    refused = run(*command, "--shapes", "8x8x8", "--device", "tpu")
    assert (refused.exit_code, "unknown device 'tpu'" in refused.output) == (2, True)


@pytest.mark.parametrize(
    ("typed", "seconds"),
    [("90", 90), ("90s", 90), ("2m", 120), ("1.5h", 5400), ("1e2", 100), ("2 min", 120), (".5", 0.5)],
)
def test_a_budget_may_have_a_unit(typed: str, seconds: float) -> None:
    assert Seconds(min=0).convert(typed, None, None) == seconds


@pytest.mark.parametrize("typed", ["2d", "2ms", "m", "1_0m", "2m30", "nan", "\uff11m"])
def test_another_unit_is_refused(typed: str) -> None:
    refused = run("--shapes", "8x8x8", "--budget", typed)
    assert (refused.exit_code, "expected a number of seconds, or 90s, 2m or 1h" in refused.output) == (2, True)


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
    for ending, beginning in (
        (".csv", "device,"),
        (".json", "{"),
        (".md", "## "),
        (".tex", "\\begin{table}"),
        (".jsonl", "{"),
    ):
        output = tmp_path / f"best{ending}"
        done = run("export", "--db", database, "-o", str(output))
        assert (done.exit_code, output.read_text()[: len(beginning)]) == (0, beginning), done.output


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("export", "x.py"), "name it with --output, as --output x.py"),
        (("export", "x.db"), "name it with --db, as --db x.db"),
        (("show", "1", "x.db"), "name it with --db, as --db x.db"),
        (("export", "8x8x8"), "name it with --shapes, as --shapes 8x8x8"),
        (("best", "8x8x8:f32:tn,1e7xkx8/16"), "name it with --shapes, as --shapes 8x8x8:f32:tn,1e7xkx8/16"),
        (("source", "1", "2"), "argument (2); --help says more"),
        (("tune", "bogus"), "argument (bogus); --help says more"),
    ],
)
def test_a_stray_word_gets_its_option(arguments: tuple[str, ...], hint: str) -> None:
    refused = run(*arguments, *(("-o", "-") if arguments[0] == "export" else ()))
    assert (refused.exit_code, hint in refused.output) == (2, True)


@pytest.mark.parametrize(
    "words", [("64x4x64", "8x8x8"), ("64x4x64,8x8x8",), ("64x4x64", "--shapes", "8x8x8"), ("@shapes.txt",)]
)
def test_shapes_may_be_arguments(words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("shapes.txt").write_text("64x4x64\n8x8x8\n")
    found = json.loads(run("space", "--device", "h100", *words, "--json").output)
    assert [one["problem"] for one in found] == ["64x4x64:f32", "8x8x8:f32"]


def test_a_shape_alone_is_tuned() -> None:
    refused = run("8x8x8", "--device", "tpu")
    assert (refused.exit_code, "unknown device 'tpu'" in refused.output) == (2, True)


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ((), "no database results.db: tune first (tsm2-tune --shapes 20480x16x20480), or name another with --db,"),
        (("x.db",), "tune first (tsm2-tune --shapes 20480x16x20480 --db x.db), or name another with --db, such as"),
        (("H100",), "no database H100: did you mean pretuned:h100, the kernels included in the package?"),
    ],
)
def test_without_a_database_two_ways_are_named(
    typed: tuple[str, ...], hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for command in (("best",), ("db", "check"), ("report",)):
        refused = run(*command, *typed)
        assert (refused.exit_code, hint in refused.output) == (2, True)


@pytest.mark.parametrize(
    "arguments",
    [("show", "99"), ("forget", "99"), ("quarantine", "--forgive", "9f9f9f9f"), ("predict", "--shapes", "9x9x9:c64")],
)
def test_a_hint_names_the_database_that_was_given(arguments: tuple[str, ...], database: str) -> None:
    refused = run(*arguments, "--db", database)
    assert (refused.exit_code, refused.output.count(f" --db {database} ")) == (2, 1), refused.output


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


def test_a_model_without_a_gpu_asks_for_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "cuda_device_count", lambda: 0)
    refused = run("model", "--shapes", "8x8x8")
    assert (refused.exit_code, "name a card with --device (" in refused.output) == (2, True)
    assert run("model", "--shapes", "8x8x8", "--device", "cpu").exit_code == 0


def test_the_source_of_a_trial_and_of_a_configuration_as_best_prints_them(database: str) -> None:
    stored = json.loads(run("show", "1", "--db", database, "--json").output)
    assert run("source", "1", "--db", database).output == stored["source"]
    copied = "row_lanes_register_b:threads=128,vector_bytes=4,lanes=1,columns=1,rows=2,min_blocks=2"
    found = run("source", copied)
    assert (found.exit_code, found.stderr) == (0, "for --layout row\n")
    assert "A, B, C row-major" in found.stdout


# An option given twice


def every_command() -> Iterator[tuple[str, click.Command]]:
    for name, command in main.commands.items():
        yield name, command
        if isinstance(command, click.Group):
            yield from ((f"{name} {below}", one) for below, one in command.commands.items())


@pytest.mark.parametrize(
    ("name", "command"), list(every_command()), ids=lambda one: one if isinstance(one, str) else ""
)
def test_help_is_in_whole_sentences(name: str, command: click.Command) -> None:
    paragraphs = [one.strip() for one in (command.help or "").split("\n\n") if "\b" not in one]
    helps = [
        one.help.partition(" [default")[0] for one in command.params if isinstance(one, click.Option) and one.help
    ]
    for text in (*paragraphs, *helps):
        assert re.match(r"[A-Z-`@]", text), text
        assert text.endswith("."), text


def test_a_space_without_a_shape_says_which_one_it_shows() -> None:
    shown = run("space", "--device", "h100", "--family", "tsm2")
    assert (shown.exit_code, "no shape is named: this is 8192x8192x8192" in shown.stderr) == (0, True)
    assert run("space", "8x8x8", "--device", "h100", "--family", "tsm2").stderr == ""


@pytest.mark.parametrize(
    ("name", "command"), list(every_command()), ids=lambda one: one if isinstance(one, str) else ""
)
def test_no_option_drops_a_value_silently(name: str, command: click.Command) -> None:
    assert all(isinstance(one, Option) for one in command.params if isinstance(one, click.Option))


def test_lists_are_joined_and_single_values_refused() -> None:
    words = (
        "space",
        "--device",
        "h100",
        "--shapes",
        "64x4x64",
        "--shapes",
        "8x8x8",
        "--dtype",
        "f32",
        "--dtype",
        "f64",
    )
    found = json.loads(run(*words, "--json", "--json").output)
    assert [one["problem"] for one in found] == ["64x4x64:f32", "64x4x64:f64", "8x8x8:f32", "8x8x8:f64"]
    for arguments, name in (
        (("best", "--db", "a.db", "--db", "b.db"), "--db"),
        (("--shapes", "8x8x8", "--budget", "1", "--budget", "2"), "--budget"),
        (("--shapes", "8x8x8", "--pairs", "--no-pairs"), "--pairs and --no-pairs"),
        (("export", "-o", "a.py", "--output", "b.py"), "--output"),
    ):
        refused = run(*arguments)
        assert (refused.exit_code, f"{name} given 2 times: it takes one value" in refused.output) == (2, True)
