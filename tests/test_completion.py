"""Tests of the shell's completion, and of what it waits for."""

from __future__ import annotations

from itertools import islice

import pytest
from click.shell_completion import CompletionItem, ShellComplete

from tsm2_tune.cli import COMMANDS, imported, main
from tsm2_tune.generator.families import FAMILIES

pytestmark = pytest.mark.usefixtures("two_gpus")


def items(*words: str) -> list[CompletionItem]:
    shell = ShellComplete(main, {}, "tsm2-tune", "_TSM2_TUNE_COMPLETE")
    return shell.get_completions(list(words[:-1]), words[-1])


def completed(*words: str) -> list[str]:
    """Return the completions of the last word."""
    return [one.value for one in items(*words)]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        *((f"{command} --device ", "0 1 cpu") for command in ("doctor", "best", "ladder")),
        ("best --device c", "cpu"),
        ("--device ", "0 1 cpu all"),
        ("--device 0,", "0,1"),
        ("model --device h2", "h200"),
        ("--strategy optuna:t", "optuna:tpe"),
        ("--bud", "--budget"),
        ("tune --shapes 8x8x8 --bud", "--budget"),
        ("export --family ism", "ism2"),
        *((f"{command}--family ", " ".join(FAMILIES)) for command in ("", "space ")),
        ("--family ism2,tsm", "ism2,tsm2"),
        ("space --family ism2,is", ""),
        ("import pretuned:", "pretuned:h100 pretuned:h200"),
        ("db merge one.db pretuned:h2", "pretuned:h200"),
        *((f"{command} --dtype f", "f32 f64 f16") for command in ("tune", "best", "source", "model")),
        ("--op t", "tn tt"),
        ("--layout ", "column row"),
        ("do", "doctor"),
        ("", " ".join(sorted(COMMANDS))),
        ("source tsm2", " ".join(f"tsm2:version=v{number}," for number in range(4))),
        ("source tsm2:v3", ""),
        ("source none:", ""),
    ],
)
def test_options_their_values_and_commands_are_completed(words: str, found: str) -> None:
    assert (completed if words else lambda word: sorted(completed(word)))(*words.split(" ")) == found.split()


def test_files_are_completed_by_the_shell() -> None:
    for command in (["import"], ["db", "merge"]):
        (found,) = items(*command, "p")
        assert (found.value, found.type) == ("p", "file")


@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_completed_leads_to_a_configuration(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = list(islice(FAMILIES[name].configurations(), 50))
    monkeypatch.setattr(type(FAMILIES[name]), "configurations", lambda _: iter(first))
    text = f"{name}:"
    while FAMILIES[name].config_type.parse(text) is None:
        longer = completed("source", text)[-1]
        assert (longer.startswith(text), len(longer) > len(text)) == (True, True)
        text = longer


def test_commands_are_listed_by_the_first_line_of_their_help() -> None:
    first = {one.name: (one.help or "").partition("\n")[0] for one in map(imported, COMMANDS)}
    assert first == {name: f"{summary}." for name, summary in COMMANDS.items()}
