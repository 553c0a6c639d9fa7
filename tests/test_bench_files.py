"""Files that a bench is given and cannot use: one sentence, and exit status 2."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from benchmarks import expected, gains, unseen

RESULTS = Path(__file__).parents[1] / "benchmarks/results"
CELLS, CALLS = RESULTS / "h200-versus-cublas.json", RESULTS / "h200-call-cost.json"


WINNER = {  # a winner of a JSON export
    "device": "NVIDIA H200", "l2_state": "clean", "m": 20480, "n": 8, "k": 20480, "median_us": 400.0,
    "vendor_us": 500.0, "vendor_right": 1, "cublas_us": 520.0, "cublas_right": 1,
}  # fmt: skip


def refused(command: click.Command, *arguments: object) -> str:
    ended = CliRunner().invoke(command, [str(one) for one in arguments])
    assert ended.exit_code == 2, ended.exception
    assert ended.output.count("\n") <= 3
    return ended.output


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b'{"rows": 3}', CALLS.read_bytes()])
def test_expected_takes_result_files_alone(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "found.json").write_bytes(content)
    assert "no result file" in refused(expected.main, tmp_path / "found.json")


def test_expected_needs_kernels_that_won_twice(tmp_path: Path) -> None:
    found = json.loads(CELLS.read_text())
    (tmp_path / "found.json").write_text(json.dumps(found | {"rows": found["rows"][:1]}))
    assert "no kernel that won several shapes" in refused(expected.main, tmp_path / "found.json")
    assert "nosuch" in refused(expected.main, CELLS, "--profile", "nosuch")


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("pack.json", "{}", "is no Python file"),
        ("pack.py", "def", "cannot be imported"),
        ("pack.py", "1 / 0", "cannot be imported"),
        ("pack.py", "x = 1", "is no exported module"),
    ],
)
def test_a_pack_is_an_exported_module(tmp_path: Path, name: str, text: str, sentence: str) -> None:
    (tmp_path / name).write_text(text)
    options = ("--device", "cpu", "--pack", tmp_path / name, "--each", 1, "--output", tmp_path / "u.json")
    assert sentence in refused(unseen.main, *options)


def test_gains_are_of_one_gpu_and_of_two_benches(tmp_path: Path) -> None:
    run = {
        "pack": "0" * 64,
        "pack_facts": {"winners": 1, "kernels": 1},
        "draw": {"seed": 0, "each": 1},
        "search_seconds": 0,
        "fallback_library": None,
    }
    of_unseen = json.loads(CELLS.read_text()) | run | {"rows": [], "earlier_runs": [], "skipped": []}
    (tmp_path / "unseen.json").write_text(json.dumps(of_unseen))
    (tmp_path / "other.json").write_text(json.dumps(of_unseen | {"device": "another"}))
    (tmp_path / "tuned.json").write_text(json.dumps({"best": [WINNER]}))
    calls, tuned = ("--calls", CALLS), ("--tuned", tmp_path / "tuned.json")
    assert "is of NVIDIA H200" in refused(gains.main, *tuned, "--unseen", tmp_path / "other.json", *calls)
    twice = ("--tuned", tmp_path / "unseen.json", "--unseen", tmp_path / "unseen.json")
    assert "has no winners" in refused(gains.main, *twice, *calls)
    ended = CliRunner().invoke(gains.main, list(map(str, (*tuned, "--unseen", tmp_path / "unseen.json", *calls))))
    assert ended.exit_code == 0
    assert "| tuned |" in ended.output
