"""Comparing with cuBLAS: of each shape the first products, of which the program gets cuBLAS's."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.standin_calls import ONE, Played, by_reason, gemm, play

pytestmark = [
    pytest.mark.host,
    pytest.mark.usefixtures("toolchain", "session_cache"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler"),
]


@pytest.fixture
def multiplying() -> dict[str, str]:
    return {"FAKE_CUBLAS_MULTIPLIES": "1"}


def verified(fakes: Path, pack: Path, multiplying: dict[str, str], writes: float, **changes: Any) -> Played:
    """Three products of ones, by a kernel that writes a number into the first element of C, and nothing else."""
    alpha, scale = changes.get("alpha", ONE)[0], changes.pop("scale", 1.0)
    c = [3.0 * alpha * scale + changes.pop("before", 0.0)] * 12
    b = [1.0, 1.0, 1.0, 1e300] * 2 if changes.get("ldb") == 4 else [1.0] * 8  # the gap holds what counts for nothing
    start = [["memory", {"A": [scale] * 18, "B": b, "C": c}], ["fake_capture", changes.pop("captured", 0)]]
    steps = [*start, *[gemm("cublasDgemm_v2", **changes)] * 5]
    environment = multiplying | {"FAKE_KERNEL_WRITES": repr(writes)}
    return play(fakes, steps, pack=pack, compared=3, environment=environment)


@pytest.mark.parametrize("writes", [0.0, 3 + 1e-13, 3 - 1e-13, float("nan"), float("inf")])
def test_a_kernel_that_is_off_is_left_out(
    fakes: Path, pack: Path, multiplying: dict[str, str], writes: float
) -> None:
    played = verified(fakes, pack, multiplying, writes)
    assert played.told.count("\n") == 1
    assert f"6x2x3 of f64: C[0, 0] of the kernel is {writes:.9g}, of cuBLAS 3" in played.told
    assert len(played.launches) == 1
    assert len(played.left) == 5
    assert by_reason(played) == {"its result was compared": 1, "the kernel's result was off": 4}
    assert played.seen[0].worst > 1
    assert played.results == [[3.0] * 12] * 5


@pytest.mark.parametrize("writes", [3.0, 3 + 1e-14, 3 - 1e-14])
def test_a_kernel_that_is_right_is_taken_after_the_comparison(
    fakes: Path, pack: Path, multiplying: dict[str, str], writes: float
) -> None:
    played = verified(fakes, pack, multiplying, writes)
    assert played.told == ""
    assert (len(played.launches), len(played.left)) == (5, 3)
    (one,) = played.seen
    assert (one.compared, one.taken) == (3, 2)
    assert one.worst < 0.5


@pytest.mark.parametrize(
    ("changes", "writes", "is_right"),
    [
        ({"alpha": [0.25, 0.0]}, 0.75 + 4e-15, True),
        ({"alpha": [0.25, 0.0]}, 0.75 + 1e-14, False),  # which 3 may be off
        ({"scale": 1e200}, 3e200, True),
        ({"scale": 1e200}, 3e200 * (1 + 1e-13), False),
        ({"scale": 1e-200}, 3e-200, True),
        ({"scale": 1e-200}, 3.1e-200, False),
        ({"ldb": 4}, 3 + 1e-14, True),
        ({"ldb": 4}, 3 + 1e-13, False),
    ],
)
def test_the_bound_is_that_of_the_products_numbers(
    fakes: Path, pack: Path, multiplying: dict[str, str], changes: dict[str, Any], writes: float, is_right: bool
) -> None:
    played = verified(fakes, pack, multiplying, writes, **changes)
    assert (played.told == "") == is_right
    assert (played.seen[0].worst <= 1) == is_right


def test_a_comparison_ends_no_capture_on_another_stream(fakes: Path, pack: Path, multiplying: dict[str, str]) -> None:
    played = verified(fakes, pack, multiplying, 3.0, captured=7)
    assert played.seen[0].compared == 3
    assert not any("capture ended" in line for line in played.log)


def test_a_comparison_leaves_what_cublas_computes_of_the_c_before(
    fakes: Path, pack: Path, multiplying: dict[str, str]
) -> None:
    played = verified(fakes, pack, multiplying, -7.0, before=1.0, beta=ONE)
    assert played.results[0] == [7.0] * 12
    assert "of the kernel is -7, of cuBLAS 7" in played.told


def test_what_cublas_refuses_is_not_compared(fakes: Path, pack: Path) -> None:
    played = verified(fakes, pack, {"FAKE_CUBLAS_REFUSES": "1"}, 7.0, before=1.0)
    assert (played.statuses, played.told) == ([[15] * 5], "")
    assert (played.seen[0].compared, played.seen[0].worst) == (0, 0)
    assert played.results == [[4.0] * 12] * 5
