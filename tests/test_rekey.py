"""New digests for pretuned trials: only of kernels whose machine code is the one that was measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks import rekey
from tests.on_host import needs_nvcc
from tsm2_tune import pretuned
from tsm2_tune.generator.families import parse_config
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.generator.source import KernelSource
from tsm2_tune.tuner.results.merge.serializer import HEAD, SOURCE_DIGITS

CONFIG, PROBLEM = "ism2:optimisation=1,threads=32,columns=2,prefetch=4,row_tiles=2", "181x5x67:f64"
Edit = Callable[[str], str]


def renamed(text: str) -> str:
    return text.replace("alpha", "alpha_")


def added_up_otherwise(text: str) -> str:
    return text.replace("beta *", "beta + ", 1)


def source(edit: Edit) -> KernelSource:
    """The kernel with its text edited."""
    config = parse_config(CONFIG)
    assert config is not None
    made = render(Problem.parse(PROBLEM), config)
    return replace(made, text=edit(made.text))


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, session_cache: None) -> Path:
    """A folder with the text of one trial. The commit before is what is here."""

    @contextmanager
    def here(commit: str) -> Iterator[Path]:
        yield rekey.ROOT

    monkeypatch.setattr(pretuned, "FOLDER", tmp_path)
    monkeypatch.setattr(rekey, "checked_out", here)
    return tmp_path


def rekeyed(texts: Path, monkeypatch: pytest.MonkeyPatch, measured: Edit, now: Edit) -> tuple[int, list[str], str]:
    """Status, lines and the trial's digest then, by the edits of what was measured, and of what is made now."""
    known = source(measured).digest[:SOURCE_DIGITS]
    trial: list[Any] = ["trial", PROBLEM, CONFIG, known, *[None] * 9, []]
    path = texts / "card.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in (HEAD, trial)))
    monkeypatch.setattr(rekey, "rendered_now", lambda subject: source(now))
    said = CliRunner().invoke(rekey.main, ["--before", "COMMIT"])
    head, line = path.read_text().splitlines()
    assert (head, json.loads(line)[: rekey.SOURCE]) == (json.dumps(HEAD), trial[: rekey.SOURCE])
    return said.exit_code, said.output.splitlines(), json.loads(line)[rekey.SOURCE]


@needs_nvcc
def test_a_kernel_of_the_same_machine_code_has_the_new_digest(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    becomes = source(renamed).digest[:SOURCE_DIGITS]
    assert rekeyed(texts, monkeypatch, str, renamed) == (
        0, ["card: 1 trials rekeyed, 0 as they were, 0 left"], becomes
    )  # fmt: skip
    assert rekeyed(texts, monkeypatch, renamed, renamed) == (
        0, ["card: 0 trials rekeyed, 1 as they were, 0 left"], becomes
    )  # fmt: skip


@needs_nvcc
@pytest.mark.parametrize(
    ("measured", "now", "reason"),
    [
        (str, added_up_otherwise, "other instructions"),
        (renamed, added_up_otherwise, "what was measured is not what that commit makes"),
    ],
)
def test_any_other_is_left_and_told(
    texts: Path, monkeypatch: pytest.MonkeyPatch, measured: Edit, now: Edit, reason: str
) -> None:
    status, (line, last), digest = rekeyed(texts, monkeypatch, measured, now)
    assert (status, last) == (1, "card: 0 trials rekeyed, 0 as they were, 1 left")
    assert line.startswith(f"card: {CONFIG} {PROBLEM}: ")
    assert line.endswith(reason)
    assert digest == source(measured).digest[:SOURCE_DIGITS]


def test_a_commit_that_git_does_not_know_is_told() -> None:
    said = CliRunner().invoke(rekey.main, ["--before", "no-such-commit"])
    assert (said.exit_code, "git has no no-such-commit" in said.output) == (2, True)
