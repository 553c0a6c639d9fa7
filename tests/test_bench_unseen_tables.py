"""Tests of the summary, the goals and the tables about shapes that were not tuned."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.join import joined
from benchmarks.result_file import ResultFile
from benchmarks.unseen import main
from benchmarks.unseen_file import read_unseen
from benchmarks.unseen_run import ratios
from benchmarks.unseen_tables import goals, ranked, summary, tables, with_fallback_us
from tests.fabricated_rows import FACTS, OF_AN_UNSEEN_RUN, measured
from tsm2_tune.errors import InputError


def test_a_summary_is_of_times_over_ours() -> None:
    found = summary([measured(), measured(ours_us=960.0, expected_us=480.0)])
    assert found.shapes == 2
    assert found.x_vendor == pytest.approx(math.sqrt(1.2 * 0.5))
    assert (found.worst, found.slower, found.slower_with_fallback) == (0.5, 0.5, 0.5)
    assert found.x_search == pytest.approx(math.sqrt(0.95 * 380 / 960))
    assert found.search_x_vendor == pytest.approx(480 / 380)
    assert found.median_regret == pytest.approx((400 / 380 - 1 + 960 / 380 - 1) / 2)
    assert found.regret_of_95 == pytest.approx(960 / 380 - 1)
    assert found.off == pytest.approx((500 / 400 + 960 / 480) / 2)
    assert found.off_of_95 == pytest.approx(2.0)


def test_slower_is_by_more_than_3_percent() -> None:
    assert summary([measured(ours_us=480.0 * 1.029)]).slower == 0
    assert summary([measured(ours_us=480.0 * 1.031)]).slower == 1


def test_what_falls_back_takes_the_vendor_s_time() -> None:
    left = measured(ours_us=960.0, falls_back=True, fallback_us=485.0)
    assert (summary([left]).slower, summary([left]).slower_with_fallback) == (1, 0)
    assert summary([measured(falls_back=None)]).slower_with_fallback is None
    assert with_fallback_us(measured(fallback_us=1.0)) == 400.0


def test_wrong_answers_are_no_times() -> None:
    assert summary([measured(cublas_verified=False, cublaslt_verified=False)]).x_vendor is None
    assert summary([measured(search_verified=False)]).x_search is None
    wrong = measured(verified=False)
    assert (summary([wrong]).x_vendor, summary([wrong]).x_search) == (None, None)
    assert ratios(measured(search_verified=False, cublas_verified=False)) == {
        "x_vendor": 1.2, "x_search": 0.95, "x_search_of_plan": 0.9896, "x_expected": 1.25,
    }  # fmt: skip


def test_ranked_values_are_of_the_rows() -> None:
    assert ranked([], 0.95) is None
    assert ranked(list(range(100, 0, -1)), 0.95) == 95
    assert ranked([3.0], 0.95) == 3.0


def test_a_fallback_is_compared_with_what_it_starts() -> None:
    """cuBLAS's own routine takes longer than cuBLASLt's fastest algorithm, and is what the library has."""
    row = measured(ours_us=450.0, cublas_us=440.0, cublaslt_us=400.0, fallback_us=441.0, falls_back=True)
    found = summary([row])
    assert (found.slower, found.slower_with_fallback, found.slower_than_cublas) == (1.0, 1.0, 0.0)
    assert summary([measured(plan_us=470.0, cublas_us=440.0)], by_timing=True).slower_than_cublas == 1.0


def goal_lines(*rows: dict[str, Any]) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in goals(rows).splitlines()[2:]]


def test_what_is_reached_is_in_bold() -> None:
    good = measured(search_us=400.0, ours_dirty_us=None, plan_us=None)
    assert goal_lines(good) == [["`gemm`", "clean", "1", "**1.000**", *["**0.0 %**"] * 4]]
    bad = measured(search_us=300.0, ours_us=600.0, ours_dirty_us=None, plan_us=None, cublas_verified=False)
    assert goal_lines(bad) == [["`gemm`", "clean", "1", "0.500", "100.0 %", "100.0 %", "100.0 %", "–"]]


def test_goals_are_of_both_states_of_the_l2_and_of_what_is_started() -> None:
    """Ours takes 960 us clean and 970 dirty; left to the library it takes 500 and 410, the search's 380 and 400."""
    dirty = {"ours_dirty_us": 970.0, "plan_dirty_us": 404.0, "search_dirty_us": 400.0, "fallback_dirty_us": 410.0}
    left = measured(ours_us=960.0, falls_back=True, fallback_us=500.0, fallback_verified=True, **dirty)
    assert [line[:4] for line in goal_lines(left)] == [
        ["`gemm`", "clean", "1", "0.760"],
        ["`gemm`", "dirty", "1", "**0.976**"],
        ["`measure=True`", "clean", "1", "**0.990**"],
        ["`measure=True`", "dirty", "1", "**0.990**"],
    ]
    wrong = goal_lines(left | {"fallback_verified": False})
    assert [line[3] for line in wrong] == ["–", "–", "**0.990**", "**0.990**"]


def test_a_file_is_read_and_shown(tmp_path: Path) -> None:
    path = tmp_path / "u.json"
    result = ResultFile(path, FACTS | OF_AN_UNSEEN_RUN)
    result.add(measured())
    shown = tables(read_unseen(path))
    assert "The pack has 4 tuned shapes and 3 kernels" in shown
    assert "| all |  |  | 1 | 1.20 | 1.20 | 0 % | 0 % | 0 % | 1.26 | 0.950 | 5.3 % | 5.3 % | 1.25 | 1.25 |" in shown
    assert "The *fallback* passes a product to torch" in shown
    printed = CliRunner().invoke(main, ["--table", str(path)])
    assert (printed.exit_code, printed.output.strip()) == (0, shown)


def test_parts_are_joined(tmp_path: Path) -> None:
    for name, n in (("1", 8), ("2", 9)):
        ResultFile(tmp_path / name, FACTS | OF_AN_UNSEEN_RUN).add(measured(n=n))
    joined((tmp_path / "1", tmp_path / "2"), tmp_path / "all").write()
    assert "2 shapes were measured. The draw has 1 shapes" in tables(read_unseen(tmp_path / "all"))
    ResultFile(tmp_path / "3", FACTS | OF_AN_UNSEEN_RUN | {"pack": "another"}).add(measured(n=10))
    with pytest.raises(InputError, match="was measured with pack 'another'"):
        joined((tmp_path / "1", tmp_path / "3"), tmp_path / "all")


@pytest.mark.parametrize(
    ("of_run", "of_row", "sentence"),
    [
        ({"pack": 5}, {}, "no usable pack of a run"),
        ({"pack_facts": {}}, {}, "no usable pack_facts"),
        ({"draw": None}, {}, "no usable draw"),
        ({"search_seconds": "5"}, {}, "no usable search_seconds"),
        ({}, {"search_us": "fast"}, "no usable search_us in row 1"),
        ({}, {"falls_back": "yes"}, "no usable falls_back in row 1"),
        ({}, {"falls_back": True}, "no time of the fallback in row 1"),
    ],
)
def test_another_file_is_refused(
    tmp_path: Path, of_run: dict[str, Any], of_row: dict[str, Any], sentence: str
) -> None:
    path = tmp_path / "u.json"
    ResultFile(path, FACTS | OF_AN_UNSEEN_RUN | of_run).add(measured(**of_row))
    shown = CliRunner().invoke(main, ["--table", str(path)])
    assert shown.exit_code == 2
    assert sentence in " ".join(shown.output.split())
