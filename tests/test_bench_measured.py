"""The benches that make the table of measured problems, and leave each of them out."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import leave_one_out, measured
from benchmarks.leave_one_out import outcome, pairs_to_time, problems, read_choices, regime, times_in
from tsm2_tune.errors import InputError
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.families import parse_config
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.seed_table import FILE

BEFORE = measured.ROOT / "benchmarks/results/h200-first-five.jsonl.xz"
PROBLEM = Problem(20480, 2, 20480, "f32")


def spelt(splits: int, stages: int = 2) -> KernelConfig:
    config = parse_config(
        f"stream_a_fma:threads=64,columns=2,prefetch=16,stages={stages},splits={splits},min_blocks=6"
    )
    assert config is not None
    return config


def test_the_package_has_what_the_command_writes(tmp_path: Path) -> None:
    result = CliRunner().invoke(measured.main, ["--output", str(tmp_path / "made.txt")], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "made.txt").read_text(encoding="utf-8") == FILE.read_text(encoding="utf-8")


def test_the_fastest_kernels_are_taken_each_once() -> None:
    times = {spelt(8): 100.0, spelt(13): 99.0, spelt(8, 4): 101.0, spelt(5, 8): 103.0, spelt(5, 8): 102.0}
    assert [(one.config, one.us) for one in measured.fastest(times)] == [
        (spelt(13), 99.0),
        (spelt(8, 4), 101.0),
        (spelt(5, 8), 102.0),
    ]


def test_a_hit_is_within_a_percent_of_the_fastest() -> None:
    times = {spelt(8): 100.0, spelt(13): 101.0, spelt(5): 102.0}
    assert outcome(PROBLEM, [spelt(13)], times).is_hit
    missed = outcome(PROBLEM, [spelt(5), spelt(4)], times)
    assert not missed.is_hit
    assert missed.times == 1.02
    unknown = outcome(PROBLEM, [spelt(4)], times)
    assert not unknown.is_hit
    assert unknown.times == 0
    assert unknown.expected > 0


def test_pairs_are_of_whole_cells_with_their_fastest() -> None:
    every = [PROBLEM, Problem(10240, 2, 10240, "f64"), Problem(10**7, 2, 2, "f32")]
    times = {problem: {spelt(26): 1.0} for problem in every}
    lists = [{problem: (spelt(8), spelt(13)) for problem in every}, {problem: (spelt(8),) for problem in every}]
    found = dict(pairs_to_time(lists, times, most=7))
    assert len(found) == 2
    assert all(set(configs) == {spelt(8), spelt(13), spelt(26)} for configs in found.values())
    assert dict(pairs_to_time(lists, times, most=7)) == found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("20480x2x20480:f32", "R"),
        ("10000000x8x8:f32", "L"),
        ("8x8x10000:f32:tn", "T"),
        ("16x16x10000000:f32:tx", "G"),
    ],
)
def test_regimes(text: str, expected: str) -> None:
    assert regime(Problem.parse(text)) == expected


def test_recorded_choices_are_of_every_cell() -> None:
    found = read_choices(BEFORE)
    assert sorted(found) == problems()
    assert {len(choices) for choices in found.values()} == {5}


@pytest.mark.parametrize("content", [b"", b"not xz", lzma.compress(b"{}"), lzma.compress(b"[[]]")])
def test_what_is_no_record_is_named(tmp_path: Path, content: bytes) -> None:
    (file := tmp_path / "record.jsonl.xz").write_bytes(content)
    with pytest.raises(InputError, match=r"record\.jsonl\.xz has no recorded choices"):
        read_choices(file)


def test_pairs_are_timed_on_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    problem = Problem(1000, 2, 2, "f32")
    (pairs := tmp_path / "pairs.txt").write_text(
        (f"{problem.text} tsm2:version=v0,threads=128,columns=1,prefetch=1\n"), encoding="utf-8"
    )
    args = ["run", str(pairs), "--device", "cpu", "--output", str(tmp_path / "run.json")]
    result = CliRunner().invoke(leave_one_out.main, args, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))["complete"]
    ((found, times),) = times_in(tmp_path / "run.json").items()
    assert found == problem
    assert [config.text for config in times] == ["tsm2:version=v0,threads=128,columns=1,prefetch=1"]
