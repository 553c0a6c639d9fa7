"""Tests of a program's gain over cuBLAS, the cost of the call included."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.gains import NO_CALLS, TIMED, TUNED, UNSEEN, Calls, draw, gains_of, main, read_tuned, regime_of, table
from tests.fabricated_rows import row
from tsm2_tune.errors import InputError

CALLS = Calls(ours_us=6.0, vendors_us=12.0, left_us=16.0)


def product(ours: float, vendors: float, **changes: Any) -> dict[str, Any]:
    plain = {"cublas_us": vendors, "cublaslt_us": None, "falls_back": False, "plan_us": None}
    return row() | plain | {"ours_us": ours} | changes


def winner(ours: float, vendors: float, cublas: float | None = None, **changes: Any) -> dict[str, Any]:
    """A winner as a JSON export has it."""
    plain = {
        "device": "a card",
        "l2_state": "clean",
        "m": 20480,
        "n": 8,
        "k": 20480,
        "vendor_right": 1,
        "cublas_right": 1,
    }
    return (
        plain
        | {"median_us": ours, "vendor_us": vendors, "cublas_us": vendors if cublas is None else cublas}
        | changes
    )


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


def test_what_is_left_to_the_vendor_takes_its_time_and_a_longer_call() -> None:
    assert only(300.0, 200.0, falls_back=True) == 1.0
    assert only(7.0, 5.0, falls_back=True) == 12.0 / 16.0
    # cuBLASLt's fastest algorithm is what it is compared with, and cuBLAS's own routine what PyTorch starts.
    assert only(300.0, 250.0, cublaslt_us=200.0, cublaslt_verified=True, falls_back=True) == 200.0 / 250.0


def test_a_tuned_product_is_left_to_the_vendor_where_that_was_faster() -> None:
    others = [winner(300.0, 200.0), winner(100.0, 200.0), winner(300.0, 200.0, 250.0), winner(240.0, 200.0, 250.0)]
    (values,) = gains_of(others, [], CALLS).values()
    assert values == pytest.approx([0.8, 200 / 240, 1.0, 2.0])


@pytest.mark.parametrize(
    ("shape", "regime"),
    [
        ((20480, 8, 20480), "R"), ((20480, 64, 65), "R"), ((100, 100, 1000), "R"), ((8, 8, 8), "R"),
        ((10**7, 8, 8), "L"), ((65, 64, 64), "L"), ((8, 64, 10**7), "T"),
    ],
)  # fmt: skip
def test_small_extents_say_the_regime(shape: tuple[int, int, int], regime: str) -> None:
    assert regime_of(*shape) == regime


def test_winners_are_read_from_an_export(tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    path.write_text(json.dumps({"best": [winner(100.0, 200.0), winner(50.0, 60.0, n=1)]}))
    device, rows = read_tuned(path)
    assert (device, [row["median_us"] for row in rows]) == ("a card", [100.0, 50.0])
    for best, sentence in (
        ([], "has no winners"),
        ([winner(100.0, 200.0, l2_state="dirty")], "export --cache clean"),
        ([winner(100.0, 200.0), winner(100.0, 200.0, device="another")], "of 2 GPUs"),
        ([winner(100.0, 200.0, m="x")], "no usable m in winner 1"),
        ([winner(0.0, 200.0)], "no usable median_us"),
        ([3], "no usable fields"),
    ):
        path.write_text(json.dumps({"best": best}))
        with pytest.raises(InputError, match=sentence):
            read_tuned(path)
    for text in ("", "[]", '{"best": 3}'):
        path.write_text(text)
        with pytest.raises(InputError, match="has no winners"):
            read_tuned(path)


@pytest.mark.parametrize(
    ("plan_us", "plan", "vendors_us", "gain"),
    [
        (80.0, "stream_a_fma", 200.0, 2.5),
        (3.0, "stream_a_fma", 5.0, 12.0 / 6.0),
        (190.0, "the vendor: timed", 200.0, 200.0 / 190.0),
        (5.0, "the vendor: timed", 5.0, 12.0 / 16.0),
    ],
)
def test_what_is_found_by_timing_is_a_kind_of_its_own(
    plan_us: float, plan: str, vendors_us: float, gain: float
) -> None:
    found = gains_of([], [product(100.0, vendors_us, plan_us=plan_us, plan_verified=True, plan=plan)], CALLS)
    assert found["R", TIMED] == [gain]
    wrong = product(100.0, vendors_us, plan_us=plan_us, plan_verified=False, plan=plan)
    assert ("R", TIMED) not in gains_of([], [wrong], CALLS)


def test_wrong_answers_count_for_nobody() -> None:
    wrong = winner(100.0, 200.0, vendor_right=0)
    assert gains_of([wrong], [product(1.0, 2.0, cublas_verified=False)], CALLS) == {}
    assert gains_of([], [product(100.0, 200.0, verified=False)], CALLS) == {}
    (values,) = gains_of([winner(300.0, 200.0, 250.0, cublas_right=0)], [], CALLS).values()
    assert values == [200.0 / 300.0]  # it is not left to a routine that is wrong


def test_slower_is_by_more_than_3_percent_of_the_vendors_time() -> None:
    rows = [], [product(102.9, 100.0), product(103.05, 100.0)]
    assert table(gains_of(*rows, CALLS), gains_of(*rows, NO_CALLS)).splitlines()[-1].endswith("| 50 % |")


def test_the_table_has_a_line_for_each_regime_and_kind() -> None:
    rows = [winner(100.0, 200.0)], [product(ours, us) for ours, us in ((100.0, 90.0), (100.0, 200.0), (2.0, 24.0))]
    _, _, tuned, unseen = table(gains_of(*rows, CALLS), gains_of(*rows, NO_CALLS)).splitlines()
    assert tuned == f"| R: a large matrix, few columns | {TUNED} | 1 | 2.00 | 2.00 | 2.00 | 2.00 | 2.00 | 0 % |"
    assert unseen == f"| R: a large matrix, few columns | {UNSEEN} | 3 | 2.78 | 1.93 | 2.00 | 0.90 | 0.90 | 33 % |"
    with pytest.raises(InputError, match="no product with right answers"):
        table({}, {})


@pytest.mark.slow
def test_the_picture_has_all_of_them(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    gains = gains_of([winner(100.0, 200.0)], [product(100.0, us) for us in (90.0, 200.0, 5e4)], CALLS)
    draw(gains, "a card", tmp_path / "gains.png")
    assert (tmp_path / "gains.png").read_bytes().startswith(b"\x89PNG")


def test_a_file_of_another_bench_is_refused(tmp_path: Path) -> None:
    results = Path("benchmarks/results")
    calls = Calls.of(results / "h100-call-cost.json")
    assert 0 < calls.ours_us < calls.vendors_us
    (tmp_path / "tuned.json").write_text(json.dumps({"best": [winner(100.0, 200.0)]}))
    for tuned, sentence in (
        (results / "h200-versus-cublas.json", "has no winners"),
        (tmp_path / "tuned.json", "name a file of unseen"),
    ):
        arguments = ["--tuned", tuned, "--unseen", results / "h200-versus-cublas.json"]
        ended = CliRunner().invoke(main, [*map(str, arguments), "--calls", str(results / "h100-call-cost.json")])
        assert ended.exit_code == 2
        assert sentence in " ".join(ended.output.split())
