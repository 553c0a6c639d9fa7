"""Tests of the benches' times and texts about plans that a module makes by timing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks import module_calls
from benchmarks.module_calls import timed
from benchmarks.result_file import ResultFile
from benchmarks.unseen_file import read_unseen
from benchmarks.unseen_tables import summary, tables
from tests.fabricated_rows import FACTS, OF_AN_UNSEEN_RUN, measured
from tsm2_tune.errors import InputError
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.verify.operands import Operands


def test_of_plans_by_timing_the_times_are_these() -> None:
    found = summary([measured(), measured(ours_us=960.0)], by_timing=True)
    assert found.x_vendor == pytest.approx(480 / 384)
    assert found.x_search == pytest.approx(380 / 384)
    assert found.median_regret == found.regret_of_95 == pytest.approx(384 / 380 - 1)
    slow = measured(plan_us=500.0, falls_back=True, fallback_us=480.0)
    assert (summary([slow], by_timing=True).slower, summary([slow], by_timing=True).slower_with_fallback) == (1, 1)
    assert summary([measured(plan_verified=False)], by_timing=True).x_search is None


def shown(tmp_path: Path, *rows: dict[str, Any]) -> list[str]:
    """The lines of the tables of a file with these rows."""
    result = ResultFile(tmp_path / "u.json", FACTS | OF_AN_UNSEEN_RUN)
    for row in rows:
        result.add(row)
    return tables(read_unseen(tmp_path / "u.json")).splitlines()


def test_plans_have_a_table_and_goals_of_their_own(tmp_path: Path) -> None:
    of_vendor = {"plan": "the vendor: timed on these arrays", "plan_seconds": 0.4}
    lines = shown(
        tmp_path,
        measured(),
        measured(n=2, plan_us=480.0, plan_seconds=0.05, falls_back=True, fallback_us=490.0),
        measured(n=3, ours_us=960.0, falls_back=True, fallback_us=500.0, **of_vendor),
        measured(n=4, plan_us=None, plan_verified=None, plan=None, plan_seconds=None),
    )
    said = "Of 3 shapes the vendor was fastest for 1. Making a plan took 50 ms (median) and 0.40 s at most."
    assert sum(said in line for line in lines) == 1
    heads = [line for line in lines if line.startswith("| regime")]
    assert ["worst" in head for head in heads] == [True, True]
    assert ["with the fallback" in head for head in heads] == [True, False]
    assert ["expected times off by" in head for head in heads] == [True, False]
    of_all = [line.split("|")[4:-1] for line in lines if line.startswith("| all |")]
    assert [cells[0].strip() for cells in of_all] == ["4", "3"]
    assert [cell.strip() for cell in of_all[1][1:4]] == ["1.16", "1.00", "0 %"]
    of_goals = [line.split("|")[5].strip() for line in lines if line.startswith("| `") and "| clean |" in line]
    assert of_goals == ["17.1 %", "**1.1 %**"]


def test_a_wrong_plan_is_told(tmp_path: Path) -> None:
    assert shown(tmp_path, measured(plan_verified=False))[-1] == "wrong results: another"


def test_without_plans_there_is_one_table(tmp_path: Path) -> None:
    lines = shown(tmp_path, measured(plan_us=None, plan_verified=None, plan=None, plan_seconds=None))
    assert sum(line.startswith("| all |") for line in lines) == 1


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"plan": None}, "does not say the plan of row 1"),
        ({"plan_seconds": "long"}, "does not say the plan of row 1"),
        ({"plan_us": "short"}, "no usable plan_us in row 1"),
        ({"plan_verified": "yes"}, "no usable plan_verified in row 1"),
        ({"plan_dirty_us": "short"}, "no usable plan_dirty_us in row 1"),
    ],
)
def test_a_plan_that_is_none_is_refused(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        shown(tmp_path, measured(**changes))


@pytest.mark.parametrize("library", [None, lambda array: (array, "theirs")])
def test_a_plan_is_made_by_timing_of_the_operands_as_they_lie(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, asked = [10.0], list[Any]()
    monkeypatch.setattr(module_calls.time, "perf_counter", lambda: clock[0])

    class Start:
        match = "the fastest"

        def __call__(self) -> None:
            asked.append("started")

    def plan(*arrays: Any, **options: Any) -> Start:
        asked.append((arrays, options))
        clock[0] += 0.25
        return Start()

    filling = SimpleNamespace(leading_dimension=8)
    one = SimpleNamespace(address=0x1000, rows=6, columns=3, filling=filling, row_major=False)
    operands = SimpleNamespace(problem=Problem(6, 2, 3, "c64", "cn"), a=one, b=one, c=one)
    found = timed(cast(Any, SimpleNamespace(plan=plan)), cast(Operands, operands), library=library)
    ((arrays, options),) = asked
    assert options == {"conj_a": True, "conj_b": False, "measure": True}
    assert [isinstance(x, tuple) for x in arrays] == [library is not None] * 3
    assert found.record == {"plan": "the fastest", "plan_seconds": 0.25}
    found.launch()
    assert asked[-1] == "started"
