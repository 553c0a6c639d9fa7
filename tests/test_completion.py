"""Tests of the shell's completion, and of what it waits for."""

from __future__ import annotations

from itertools import islice

import pytest
from click.shell_completion import ShellComplete

from tsm2_tune.cli import COMMANDS, main
from tsm2_tune.generator.families import FAMILIES

pytestmark = pytest.mark.usefixtures("two_gpus")


def completed(*words: str) -> list[str]:
    """Return the completions of the last word."""
    shell = ShellComplete(main, {}, "tsm2-tune", "_TSM2_TUNE_COMPLETE")
    return [one.value for one in shell.get_completions(list(words[:-1]), words[-1])]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        *((f"{command} --device ", "0 1 cpu") for command in ("doctor", "best", "ladder")),
        ("best --device c", "cpu"),
        ("--device ", "0 1 cpu all"),
        ("--device a", "all"),
        ("--device 0,", "0,1"),
        ("model --device h2", "h200"),
        ("--strategy optuna:t", "optuna:tpe"),
        ("--bud", "--budget"),
        ("tune --shapes 8x8x8 --bud", "--budget"),
        ("export --family ism", "ism2"),
        *((f"{command}--family ", " ".join(FAMILIES)) for command in ("", "space ")),
        *((f"{command}--family ism", "ism2") for command in ("", "space ")),
        ("space --family ism2,is", ""),
        ("import pretuned:", "pretuned:h100 pretuned:h200"),
        ("db merge one.db pretuned:h2", "pretuned:h200"),
        *((f"{command} --dtype f", "f32 f64 f16") for command in ("tune", "best", "source", "model")),
        ("--dtype f32,f6", "f32,f64"),
        ("--op t", "tn tt"),
        ("--layout ", "column row"),
        ("do", "doctor"),
        ("", " ".join(sorted(COMMANDS))),
    ],
)
def test_options_their_values_and_commands_are_completed(words: str, found: str) -> None:
    assert (completed if words else lambda word: sorted(completed(word)))(*words.split(" ")) == found.split()


def test_families_and_files_are_completed_one_after_another() -> None:
    assert "ism2,tsm2" in completed("--family", "ism2,")
    for command in (["import"], ["db", "merge"]):
        shell = ShellComplete(main, {}, "tsm2-tune", "_TSM2_TUNE_COMPLETE")
        (found,) = shell.get_completions(command, "p")
        assert (found.value, found.type) == ("p", "file")


def test_configurations_are_completed_value_by_value() -> None:
    assert "ladder:" in completed("source", "")
    versions = completed("source", "tsm2")
    assert versions == [f"tsm2:version=v{number}," for number in range(4)]
    assert completed("source", "tsm2:version=v3,thr") == completed("source", "tsm2:version=v3,")
    text = next(FAMILIES["tsm2"].configurations()).text
    assert text in completed("source", text[:-1])
    assert completed("source", "tsm2:v3") == completed("source", "none:") == []


@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_completed_leads_to_a_configuration(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = list(islice(FAMILIES[name].configurations(), 50))
    monkeypatch.setattr(type(FAMILIES[name]), "configurations", lambda _: iter(first))
    text, steps = f"{name}:", 0
    while FAMILIES[name].config_type.parse(text) is None:
        longer = completed("source", text)[-1]
        assert longer.startswith(text)
        assert len(longer) > len(text)
        text, steps = longer, steps + 1
    assert steps > 0


def test_every_command_is_there_under_its_name() -> None:
    assert [main.commands[name].name for name in COMMANDS] == list(COMMANDS)


def test_a_command_is_listed_by_the_first_line_of_its_help() -> None:
    first = {name: (main.commands[name].help or "").partition("\n")[0] for name in COMMANDS}
    assert first == {name: f"{summary}." for name, summary in COMMANDS.items()}
