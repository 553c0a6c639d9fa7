"""The first choices over a grid of shapes, planned and run."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks import first_runs
from benchmarks.first_choices import First, beside, first_choice, grid, main, summary, worst
from benchmarks.first_runs import problems_in, read_runs, table, times_the_roofline
from benchmarks.winner import room_bytes
from tsm2_tune.errors import InputError
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.predict.expected_time import START_US
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.measure.timing import Effort
from tsm2_tune.tuner.search.loop import Options
from tsm2_tune.tuner.verify.operands import needed_bytes

H200 = PROFILES["h200"]


def test_the_grid_is_of_shapes_in_every_proportion() -> None:
    found = grid(H200, ("f32", "c64"), 1500, seed=0)
    assert len(set(found)) == 1500
    assert grid(H200, ("f32", "c64"), 1500, seed=0) == found != grid(H200, ("f32", "c64"), 1500, seed=1)
    assert all(needed_bytes(problem) <= room_bytes(H200) for problem in found)
    for extents in zip(*((p.m, p.n, p.k) for p in found), strict=True):
        assert (min(extents), max(extents)) == (1, 10**8)
    assert {p.op for p in found} == {"nn", "ttt", "tn", "ntt", "cn", "jtt"}
    with pytest.raises(InputError, match=r"the grid has \d+ shapes that fit h200: ask for no more --shapes"):
        grid(H200, ("f32",), 5000, seed=0)


def test_a_first_choice_is_within_twice_the_roofline() -> None:
    found = first_choice(Problem(100, 100, 10**6, "f32", "tx"), H200)
    assert found.times < 2
    assert (found.reason, found.is_absurd) == ("", False)


def test_what_is_not_has_a_reason() -> None:
    found = first_choice(Problem(3, 10**6, 1000, "f32", "ntt"), H200)
    assert found.times > 2
    assert not found.is_absurd
    assert "no candidate is expected to take much less" in found.reason
    assert "times the operations for 3x1000000" in found.reason
    assert "the transposed product 1000000x3x1000:f32:nt" in found.reason


def first(times: float, reason: str = "", *, absurd: bool = False) -> First:
    return First(f"1x1x{times:.0f}:f32", "tsm2", times * (START_US + 1), 1.0, 10.0, reason, absurd)


def test_the_summary_counts() -> None:
    found = [first(1), first(1.5), first(3, "narrow"), first(9, "another", absurd=True)]
    none = First("5x5x5:f32", "", None, 1.0, None, "no configuration", is_absurd=False)
    text = summary([*found, none])
    assert "5 shapes: the first choice of 40.0 %" in text
    assert "of 1 none is expected" in text
    assert "of 1 another candidate" in text
    assert "1 have no configuration" in text
    assert [one.times for one in worst([none, *found], 2)] == [9, 3]
    assert none.times == math.inf


def test_a_shape_without_a_configuration_is_told() -> None:
    found = first_choice(Problem(3, 31623, 100_000, "f32", "tn"), H200)
    assert (found.configuration, found.expected_us, found.is_absurd) == ("", None, False)
    assert "no configuration: dropped" in found.reason
    assert "the transposed product 31623x3x100000:f32:tnt" in found.reason


def test_a_plan_is_written(tmp_path: Path) -> None:
    output, problems = tmp_path / "f.json", tmp_path / "w.txt"
    arguments = ["--shapes", "3", "--dtype", "f32", "--processes", "1", "--worst", "2"]
    arguments += ["--output", str(output), "--problems", str(problems)]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    found = json.loads(output.read_text())
    assert len(found["rows"]) == 3
    rows = sorted(found["rows"], key=lambda row: -row["expected_us"] / (row["floor_us"] + START_US))
    assert [p.text for p in problems_in(problems)] == [row["problem"] for row in rows[:2]]
    assert CliRunner().invoke(main, arguments).exit_code == 2  # it is there


def test_expected_times_beside_measured_ones() -> None:
    text = beside(Path("benchmarks/results/h200-versus-cublas.json"), H200)
    assert text.startswith("1033 winners, expected over measured times by quantile: 0 % 0.")


@pytest.mark.parametrize("content", ["", "5x5", "5x5x5:f99", "\xff"])
def test_a_list_that_is_none_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "w.txt"
    path.write_text(content, encoding="latin-1")
    with pytest.raises(InputError):
        problems_in(path)


def test_rows_are_told_by_their_distance_from_the_roofline() -> None:
    row: dict[str, Any] = {"problem": "p", "configuration": "c", "outcome": "ok", "expected_us": 9.0, "floor_us": 5.0}
    times = {"n": 20.0, "f": 80.0, "x": None}
    near, far, failed = (row | {"problem": name, "measured_us": us} for name, us in times.items())
    assert times_the_roofline(near) == 2.0
    lines = table([near, far, failed]).splitlines()[2:]
    assert [line[2] for line in lines] == ["x", "f", "n"]


@pytest.mark.host
def test_first_choices_are_run_on_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    once = Effort(min_samples=1, max_samples=1, warm_up_seconds=0.0)
    monkeypatch.setattr(first_runs, "Options", partial(Options, effort=once))
    problems, output = tmp_path / "w.txt", tmp_path / "w.json"
    problems.write_text("64x2x64:f32\n40x3x32:f32\n64x2x64:f32\n")

    def run(*more: str) -> Any:
        return CliRunner().invoke(main, ["--run", str(problems), "--device", "cpu", "--output", str(output), *more])

    done = run("--part", "1/2")
    assert done.exit_code == 0, done.output
    assert len(read_runs(output)["rows"]) == 1
    assert run().exit_code == 2  # it is there
    done = run("--resume")
    assert done.exit_code == 0, done.output
    rows = read_runs(output)["rows"]
    assert [row["problem"] for row in rows] == ["64x2x64:f32", "40x3x32:f32"]
    assert all(row["outcome"] == "ok" and row["measured_us"] > 0 for row in rows)
    output.write_text(json.dumps({"rows": [rows[0] | {"measured_us": "fast"}]}))
    with pytest.raises(InputError, match="no usable measured_us in row 1"):
        read_runs(output)
