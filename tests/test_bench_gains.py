"""What a program gains over cuBLAS, the cost of the call included."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.gains import (
    OURS_CALL,
    PLANNED,
    TUNED,
    UNSEEN,
    VENDORS_CALL,
    Calls,
    draw,
    gains_of,
    main,
    table,
)
from tests.fabricated_rows import row
from tsm2_tune.errors import InputError

CALLS = Calls(ours_us=6.0, plans_us=4.0, vendors_us=12.0)


def product(ours: float, vendors: float, **changes: Any) -> dict[str, Any]:
    plain = {"cublas_us": vendors, "cublaslt_us": None, "falls_back": False, "plan_us": None}
    return row() | plain | {"ours_us": ours} | changes


def only(ours: float, vendors: float, **changes: Any) -> float:
    """The gain of one product that was not tuned."""
    ((values,),) = [list(gains_of([], [product(ours, vendors, **changes)], CALLS).values())]
    (gain,) = values
    return gain


def test_a_long_product_gains_what_its_kernel_does() -> None:
    assert only(100.0, 250.0) == 2.5


def test_of_a_short_one_the_call_is_what_takes_time() -> None:
    assert only(3.0, 4.0) == 2.0  # 12 us over 6
    assert only(3.0, 24.0) == 4.0


def test_what_is_left_to_the_vendor_takes_its_time_and_both_calls() -> None:
    assert only(300.0, 200.0, falls_back=True) == 1.0
    assert only(7.0, 5.0, falls_back=True) == 12.0 / 18.0


def test_a_tuned_product_is_left_to_the_vendor_where_that_was_faster() -> None:
    (values,) = gains_of([product(300.0, 200.0), product(100.0, 200.0)], [], CALLS).values()
    assert values == [1.0, 2.0]


@pytest.mark.parametrize(
    ("plan_us", "plan", "vendors_us", "gain"),
    [
        (80.0, "tsmr", 200.0, 2.5),
        (3.0, "tsmr", 5.0, 12.0 / 4.0),
        (190.0, "the vendor: timed", 200.0, 200.0 / 190.0),
        (5.0, "the vendor: timed", 5.0, 12.0 / 16.0),
    ],
)
def test_a_measured_plan_is_a_kind_of_its_own(plan_us: float, plan: str, vendors_us: float, gain: float) -> None:
    found = gains_of([], [product(100.0, vendors_us, plan_us=plan_us, plan_verified=True, plan=plan)], CALLS)
    assert found["R", PLANNED] == [gain]
    wrong = product(100.0, vendors_us, plan_us=plan_us, plan_verified=False, plan=plan)
    assert ("R", PLANNED) not in gains_of([], [wrong], CALLS)


def test_wrong_answers_count_for_nobody() -> None:
    assert gains_of([product(100.0, 200.0, verified=False)], [product(1.0, 2.0, cublas_verified=False)], CALLS) == {}


def test_the_table_has_a_line_for_each_regime_and_kind() -> None:
    gains = gains_of([product(100.0, 200.0)], [product(100.0, us) for us in (90.0, 200.0, 405.0)], CALLS)
    _, _, tuned, unseen = table(gains).splitlines()
    assert tuned == f"| R: a large matrix, few columns | {TUNED} | 1 | 2.00 | 2.00 | 2.00 | 0 % |"
    assert unseen == f"| R: a large matrix, few columns | {UNSEEN} | 3 | 1.94 | 0.90 | 0.90 | 33 % |"
    with pytest.raises(InputError, match="no product with right answers"):
        table({})


def test_the_picture_has_all_of_them(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    gains = gains_of([product(100.0, 200.0)], [product(100.0, us) for us in (90.0, 200.0)], CALLS)
    draw(gains, "a card", tmp_path / "gains.png")
    assert (tmp_path / "gains.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{}",
        '{"torch": 3}',
        json.dumps({"torch": {"one_thread": {OURS_CALL: {"median_us": "x"}, VENDORS_CALL: {}}}}),
    ],
)
def test_what_is_no_file_of_call_cost_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "calls.json").write_text(content)
    with pytest.raises(InputError, match="is no file of call_cost"):
        Calls.of(tmp_path / "calls.json")


def test_the_committed_files_of_calls_and_cells_are_read(tmp_path: Path) -> None:
    results = Path("benchmarks/results")
    calls = Calls.of(results / "h200-call-cost.json")
    assert 0 < calls.ours_us < calls.vendors_us
    arguments = ["--tuned", results / "h200-versus-cublas.json", "--unseen", results / "h200-versus-cublas.json"]
    ended = CliRunner().invoke(main, [*map(str, arguments), "--calls", str(results / "h200-call-cost.json")])
    assert ended.exit_code == 2  # a file of another bench
    assert "name a file of unseen" in ended.output
