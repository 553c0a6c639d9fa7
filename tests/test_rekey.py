"""New digests for pretuned trials: only of kernels whose machine code is the one that was measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks import rekey
from tests.on_host import needs_nvcc
from tsm2_tune.generator.families import parse_config
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.generator.source import KernelSource
from tsm2_tune.tuner.results.merge.serializer import HEAD, SOURCE_DIGITS

pytestmark = pytest.mark.slow

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


@needs_nvcc
@pytest.mark.usefixtures("session_cache")
@pytest.mark.parametrize(
    ("measured", "now", "status", "counts", "reason"),
    [
        (str, renamed, 0, "1 trials rekeyed, 0 as they were, 0 left", ""),
        (str, added_up_otherwise, 1, "0 trials rekeyed, 0 as they were, 1 left", "other instructions"),
    ],
)
def test_only_kernels_of_the_same_machine_code_have_new_digests(
    measured: Edit, now: Edit, status: int, counts: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text has one trial, and the commit before is the present one. Other kernels are left, with the reason."""
    digests = [source(edit).digest[:SOURCE_DIGITS] for edit in (measured, now)]
    trial: list[Any] = ["trial", PROBLEM, CONFIG, digests[0], *[None] * 9, []]
    path = tmp_path / "card.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in (HEAD, trial)))
    doubles = {"tsm2_tune.pretuned.FOLDER": tmp_path, "benchmarks.rekey.rendered_now": lambda _: source(now),
               "benchmarks.rekey.checked_out": lambda _: nullcontext(rekey.ROOT)}  # fmt: skip
    for name, double in doubles.items():
        monkeypatch.setattr(name, double)
    said = CliRunner().invoke(rekey.main, ["--before", "COMMIT"])
    *told, last = said.output.splitlines()
    assert (said.exit_code, last) == (status, f"card: {counts}")
    assert told == ([f"card: {CONFIG} {PROBLEM}: {reason}"] if reason else [])
    head, line = path.read_text().splitlines()
    assert (head, json.loads(line)[: rekey.SOURCE]) == (json.dumps(HEAD), trial[: rekey.SOURCE])
    assert json.loads(line)[rekey.SOURCE] == digests[0 if reason else 1]
