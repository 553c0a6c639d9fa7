"""Tests of the files and the table of call_cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks import call_cost
from benchmarks import gpu as bench_gpu
from benchmarks.call_tables import BY_LAUNCHER, LEFT, NEW, OUT, OWN, SPLIT, read_calls, table
from benchmarks.gains import Calls
from tsm2_tune.errors import InputError

OF_TORCH = {OWN["torch"]: 20.0, OUT: 7.0, NEW: 9.0, BY_LAUNCHER + SPLIT: 5.0}
OF_CUPY = {OWN["cupy"]: 25.0, OUT: 5.0}


def written(path: Path, torch: dict[str, Any], cupy: dict[str, Any]) -> Path:
    times = {"torch": torch, "cupy": cupy}
    told = {at: {"one_thread": {name: {"median_us": us} for name, us in of.items()}} for at, of in times.items()}
    path.write_text(json.dumps(told))
    return path


def test_the_table_has_what_was_measured_over_the_librarys_own(tmp_path: Path) -> None:
    lines = table(read_calls(written(tmp_path / "calls.json", OF_TORCH, OF_CUPY))).splitlines()
    assert [line.split("|")[2:4] for line in lines[2:]] == [
        [" 20.0 ", " 25.0 "], [" 7.0 (0.35) ", " 5.0 (0.20) "], [" 9.0 (0.45) ", " – "], [" 5.0 (0.25) ", " – "],
    ]  # fmt: skip


def test_gains_takes_the_longer_call_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "calls.json"
    assert Calls.of(written(path, OF_TORCH, OF_CUPY)) == Calls(7.0, 20.0, 27.0)
    assert Calls.of(written(path, OF_TORCH | {SPLIT: 8.0, LEFT: 25.0}, OF_CUPY)) == Calls(8.0, 20.0, 25.0)
    assert Calls.of(written(path, OF_TORCH | {SPLIT: 6.0}, OF_CUPY)) == Calls(7.0, 20.0, 27.0)


@pytest.mark.parametrize("wrong", ["x", 0, None, -1, [7.0]])
def test_what_is_no_time_is_refused(tmp_path: Path, wrong: Any) -> None:
    for torch in ({OUT: wrong}, {SPLIT: wrong}):
        with pytest.raises(InputError, match="is no file of call_cost"):
            read_calls(written(tmp_path / "calls.json", OF_TORCH | torch, OF_CUPY))


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"torch": 3}', '{"torch": {"one_thread": {}}, "cupy": {}}'])
def test_what_is_no_file_of_call_cost_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "calls.json").write_text(content)
    with pytest.raises(InputError, match="is no file of call_cost"):
        Calls.of(tmp_path / "calls.json")


def test_a_file_without_the_librarys_own_call_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is no file of call_cost"):
        read_calls(written(tmp_path / "calls.json", {OUT: 7.0}, OF_CUPY))


@pytest.mark.parametrize(
    ("device", "sentence"),
    [("0", "no CUDA driver answers, and cuBLAS has no host: run this where there is a GPU"),
     ("cpu", "cuBLAS has no host: use a CUDA ordinal")],
)  # fmt: skip
def test_without_a_gpu_no_advice_names_the_host(
    device: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_gpu, "cuda_device_count", lambda: 0)
    said = CliRunner().invoke(call_cost.main, ["--device", device, "--output", str(tmp_path / "calls.json")])
    assert (said.exit_code, said.output) == (2, f"Error: {sentence}\n")
