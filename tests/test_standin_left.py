"""The library that stands in for cuBLAS: what it leaves to cuBLAS, and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.calls import A, B, C
from tests.fabricated import vendor_measurement, winners
from tests.library_calls import fabricated_library, library_of, tried
from tests.lt_calls import NO_KERNEL, WRONG
from tests.on_host import IN_C
from tests.standin_calls import (
    ROUTINES,
    ZERO,
    Played,
    by_reason,
    gemm,
    of_the_program,
    play,
    random_calls,
    without_copies,
    without_factors,
)
from tsm2_tune.generator.problem import Problem

pytestmark = IN_C
TENSOR_OP_MATH, TF32_MATH, BF16X9_MATH, FP64_EMULATED_MATH = 1, 3, 4, 8


def batch(**changes: Any) -> list[Any]:
    plain: dict[str, Any] = {"count": 2, "stride_a": 0, "stride_b": 6, "stride_c": 12}
    return gemm("cublasSgemmStridedBatched_64", **plain | changes)


@pytest.fixture
def played(fakes: Path, pack: Path) -> Callable[..., Played]:
    return lambda *steps: play(fakes, steps, pack=pack)


def test_what_no_kernel_is_for_goes_to_cublas_as_it_is(fakes: Path) -> None:
    calls = random_calls(3000, 1)
    steps = [["cublasSetStream_v2", 77], *calls[:1500], ["cublasSetMathMode", TF32_MATH], *calls[1500:]]
    alone, played = play(fakes, steps, standin=False), play(fakes, steps)
    assert (played.told, played.statuses, played.launches) == ("", alone.statuses, [])
    assert len(alone.left) > 3000
    assert without_factors(played.left) == without_factors(alone.left)
    assert {line.split()[0] for line in played.left} == set(ROUTINES)


def test_each_call_is_taken_or_left_and_none_is_both(fakes: Path, pack: Path) -> None:
    steps = random_calls(4000, 2)
    alone, played = play(fakes, steps, standin=False), play(fakes, steps, pack=pack)
    left = without_copies(played.left)
    assert (played.told, len(played.launches) + len(of_the_program(left))) == ("", 4000)
    assert len(of_the_program(alone.left)) == 4000
    assert sum(one.taken for one in played.seen) == len(played.launches) > 250
    assert all(one.calls == one.taken + sum(one.left) for one in played.seen)
    rest = iter(without_factors(alone.left))
    assert all(line in rest for line in without_factors(left))  # in their order


UNFIT = {
    WRONG: [
        *(gemm(**one) for one in (
            {"alpha": ZERO}, {"alpha": 0}, {"beta": 0}, {"alpha": [-0.0, 0.0]}, {"C": A + 4 * 17}, {"C": B - 4},
            {"k": 0}, {"ldb": 2}, {"ldc": 5}, {"lda": 5}, {"A": 0}, {"A": A + 2}, {"B": B + 1}, {"C": 0},
            {"C": C + 1})),
        gemm("cublasSgemmStridedBatched", count=-1), batch(ldb=2**63 - 1, stride_b=-2),  # 2 ldb, wrapped
        batch(count=2**62 + 1),
    ],
    NO_KERNEL: [
        gemm("cublasSgemmStridedBatched", count=2), gemm(transa=1),
        *(gemm("cublasSgemmStridedBatched", count=2, stride_a=a, stride_b=b, stride_c=c)
          for a, b, c in ((0, 6, 13), (18, 6, 12), (0, 7, 12))),
        batch(transb=1, ldb=4, stride_b=8), batch(stride_b=6 + 2**32), batch(stride_c=12 + 2**32),
        batch(stride_a=2**32),
    ],
    "the vector is not contiguous": [gemm("cublasSgemv_v2", incy=2), gemm("cublasSgemv_v2", incx=-1)],
}  # fmt: skip
LOWER = "the program allows cuBLAS a lower precision"
SETTINGS = [
    (["cublasSetPointerMode_v2", 1], gemm(alpha=0x1000, beta=0x2000), "alpha and beta are in device memory"),
    *((["cublasSetMathMode", math], gemm(), LOWER)
      for math in (TF32_MATH, TF32_MATH + 16, TENSOR_OP_MATH, BF16X9_MATH)),
    (["cublasSetSmCountTarget", 100], gemm(), "the program reserves multiprocessors"),
]  # fmt: skip


@pytest.mark.parametrize("reason", UNFIT)
def test_what_a_kernel_does_not_compute_as_cublas_would_is_left(fakes: Path, tmp_path: Path, reason: str) -> None:
    """Even if fitting calls and unfit ones take turns: none decides for others."""
    pack, calls = fabricated_library(tmp_path, tried(Problem(6, 2, 3, "f32"))), UNFIT[reason]
    no_operation = gemm(transa=3)  # which stands nowhere in the journal
    played = play(fakes, [one for call in (no_operation, *calls) * 2 for one in (call, gemm())], pack=pack)
    left = [line.split()[0] for line in of_the_program(played.left)]
    assert left == [call[0] for call in (no_operation, *calls)] * 2
    assert (played.told, len(played.launches)) == ("", 2 * len(calls) + 2)
    assert by_reason(played) == {reason: 2 * len(calls)}


def test_what_the_handle_is_set_to_may_leave_all_to_cublas(played: Callable[..., Played]) -> None:
    for setting, call, reason in SETTINGS:
        found = played(setting, call)
        assert (found.launches, len(of_the_program(found.left)), by_reason(found)) == ([], 1, {reason: 1})


@pytest.mark.parametrize("is_first", [True, False])
def test_what_is_left_does_not_decide_for_what_looks_alike(fakes: Path, tmp_path: Path, is_first: bool) -> None:
    fit, unfit = gemm("cublasDgemv_v2", 6, 3), gemm("cublasDgemv_v2", 6, 3, incy=2)
    pack = fabricated_library(tmp_path, tried(Problem(6, 1, 3, "f64")))
    played = play(fakes, [fit, unfit] * 2 if is_first else [unfit, fit] * 2, pack=pack)
    assert (len(played.launches), len(played.left)) == (2, 2)
    (one,) = played.seen
    assert (one.calls, one.taken) == (4, 2)


def test_the_modes_of_a_type_that_round_as_kernels_do(played: Callable[..., Played]) -> None:
    """Modes of single precision do not concern double."""
    of_types = {0: (68, (0, 2)), 4: (68, (0, 2)), 2: (68, (0, 1, 2)), 14: (68, (0, 1, 2))}
    calls = [
        (gemm("cublasGemmEx", type_a=type_, type_b=type_, type_c=type_, compute=compute), mode, mode in exact)
        for type_, (compute, exact) in of_types.items()
        for mode in range(5)
    ]
    calls += [
        (gemm(routine), mode, mode != FP64_EMULATED_MATH)
        for routine in ("cublasDgemm_v2", "cublasZgemm_v2_64")
        for mode in (TENSOR_OP_MATH, TF32_MATH, BF16X9_MATH, FP64_EMULATED_MATH)
    ]
    found = played(*(step for call, mode, _ in calls for step in (["cublasSetMathMode", mode], call)))
    assert [line.split()[0] for line in of_the_program(found.left)] == [
        call[0] for call, _, taken in calls if not taken
    ]
    assert len(found.launches) == sum(taken for *_, taken in calls)


def test_a_kernel_that_cannot_be_started_is_tried_three_times(played: Callable[..., Played]) -> None:
    failing = ["fake_fail", "cuLaunchKernel", 700], *[gemm()] * 5, ["fake_fail", "", 0], gemm()
    found = played(*failing, gemm("cublasDgemm_v2"))
    assert found.told.count("a product is left to cuBLAS: ") == found.told.count("\n") == 3
    assert by_reason(found) == {"the kernel could not be started": 6}
    assert len(found.launches) == 1  # another kernel's launch
    assert len(played(failing[0], *failing[-3:]).launches) == 1


SPLIT = gemm(m=70, n=9, k=3, transa=1)  # by a kernel that splits k
GAP = gemm(transa=1, lda=5, C=A + 4 * (5 * 5 + 3))  # A has no gap behind its last column
OTHERS: dict[str, tuple[list[Any], int, dict[str, int]]] = {  # steps, launches, and what was left for which reason
    "matrices side by side": ([gemm(C=A + 4 * 18), gemm(C=B - 4 * 12), gemm(C=B + 4 * 6), GAP], 4, {}),
    "a kernel that was not loaded decides for no other call": (
        [["fake_fail", "cuModuleLoadData", 2], gemm(), ["fake_fail", "", 0], gemm()],
        1, {"the kernel could not be started": 1}),
    "no memory for a workspace": (
        [["fake_memory", 0], *[SPLIT] * 4, ["fake_memory", 1 << 30], SPLIT], 1, {"no memory for a workspace": 4}),
    "no memory for a graph": (
        [["cublasSetStream_v2", 7], SPLIT, ["fake_memory", 0], ["fake_capture", 7], SPLIT,
         ["fake_capture", 0], SPLIT], 2, {"captured, and the kernel is not loaded, or has no workspace": 1}),
    "a complex factor is 0 by both parts": (
        [gemm(f"cublas{letter}gemm_v2", alpha=alpha) for letter in "CZ" for alpha in ([0.0, 2.0], [2.0, 0.0], ZERO)],
        4, {WRONG: 2}),
    "another GPU": ([["fake_device", "NVIDIA A100", 8, 0], gemm()], 0, {NO_KERNEL: 1}),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_what_else_is_taken_or_left(played: Callable[..., Played], name: str) -> None:
    steps, launches, left = OTHERS[name]
    found = played(*steps)
    assert (len(found.launches), by_reason(found)) == (launches, left)
    assert (found.told == "") == ("not loaded" not in name)


def test_types_that_are_summed_up_as_kernels_do_are_taken(played: Callable[..., Played]) -> None:
    kinds = [(0, 68), (0, 69), (1, 70), (2, 68), (14, 68), (4, 68), (5, 70), (5, 71)]
    others = [(0, 77), (0, 74), (1, 68), (2, 64), (28, 68)]
    calls = [
        gemm("cublasGemmEx", 6 + at, type_a=type_ % 28, type_b=type_, type_c=type_, compute=compute)
        for at, (type_, compute) in enumerate(kinds + others)
    ]
    found = played(*calls, gemm("cublasGemmStridedBatchedEx_64", compute=64))
    assert found.uncounted == (0, len(others) + 1, 0)
    assert {one.shape[0] for one in found.seen if one.taken} == set(range(6, 6 + len(kinds)))
    assert (len(found.launches), len(found.left)) == (len(kinds), len(others) + 1)


def test_a_product_that_cublas_is_expected_to_be_faster_at_is_left(fakes: Path, tmp_path: Path) -> None:
    rows, sources = winners(tmp_path, tried(Problem(6, 2, 3, "f32")))
    for us, launches in ((470.0, 0), (530.0, 1)):  # the kernel takes 500
        row = replace(rows[0], cublas_us=us, cublas_right=1, cublas_routine=vendor_measurement(us).routine)
        played = play(fakes, [gemm()], pack=library_of(tmp_path / f"lib{launches}.so", row, sources))
        assert len(played.launches) == launches
        assert by_reason(played) == ({} if launches else {"cuBLAS is expected to be as fast": 1})
