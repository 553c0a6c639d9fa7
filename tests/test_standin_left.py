"""The library that stands in for cuBLAS: what it leaves to cuBLAS, and why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.calls import A, B, C
from tests.fabricated import vendor_measurement, winners
from tests.library_calls import fabricated_library, tried
from tests.on_host import IN_C
from tests.standin_calls import (
    ROUTINES,
    ZERO,
    by_reason,
    gemm,
    of_the_program,
    play,
    random_calls,
    without_copies,
    without_factors,
)
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.export.library import library_bytes
from tsm2_tune.tuner.export.measured_times import NOTHING_KNOWN

pytestmark = IN_C
TENSOR_OP_MATH, TF32_MATH, BF16X9_MATH, FP64_EMULATED_MATH = 1, 3, 4, 8
WIDE_BATCH: dict[str, Any] = {"routine": "cublasSgemmStridedBatched_64", "count": 2, "stride_a": 0}


@pytest.mark.parametrize("math", [0, TF32_MATH])
def test_what_no_kernel_is_for_goes_to_cublas_as_it_is(fakes: Path, math: int) -> None:
    steps = [["cublasSetStream_v2", 77], ["cublasSetMathMode", math], *random_calls(1500, 1)]
    alone, played = play(fakes, steps, standin=False), play(fakes, steps)
    assert played.told == ""
    assert played.statuses == alone.statuses
    assert len(alone.left) > 1500
    assert without_factors(played.left) == without_factors(alone.left)
    assert {line.split()[0] for line in played.left} == set(ROUTINES)
    assert played.launches == []


def test_each_call_is_taken_or_left_and_none_is_both(fakes: Path, pack: Path) -> None:
    steps = random_calls(4000, 2)
    alone, played = play(fakes, steps, standin=False), play(fakes, steps, pack=pack)
    assert played.told == ""
    left = without_copies(played.left)
    assert len(played.launches) + len(of_the_program(left)) == len(of_the_program(alone.left)) == 4000
    assert len(played.launches) > 250
    assert sum(one.taken for one in played.seen) == len(played.launches)
    assert all(one.calls == one.taken + sum(one.left) for one in played.seen)
    rest = iter(without_factors(alone.left))
    assert all(line in rest for line in without_factors(left))  # in their order


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ([["cublasSetPointerMode_v2", 1], gemm(alpha=0x1000, beta=0x2000)], "alpha and beta are in device memory"),
        ([["cublasSetMathMode", TF32_MATH], gemm()], "the program allows cuBLAS a lower precision"),
        ([["cublasSetMathMode", TF32_MATH + 16], gemm()], "the program allows cuBLAS a lower precision"),
        ([["cublasSetMathMode", TENSOR_OP_MATH], gemm()], "the program allows cuBLAS a lower precision"),
        ([["cublasSetMathMode", BF16X9_MATH], gemm()], "the program allows cuBLAS a lower precision"),
        ([["cublasSetSmCountTarget", 100], gemm()], "the program reserves multiprocessors"),
        ([gemm(alpha=[0.0, 0.0])], "alpha or an extent is 0, or C overlaps"),
        ([gemm(alpha=0)], "alpha or an extent is 0, or C overlaps"),
        ([gemm(beta=0)], "alpha or an extent is 0, or C overlaps"),
        ([gemm(alpha=[-0.0, 0.0])], "alpha or an extent is 0, or C overlaps"),
        ([gemm(C=A + 4 * 17)], "alpha or an extent is 0, or C overlaps"),
        ([gemm(C=B - 4)], "alpha or an extent is 0, or C overlaps"),
        ([gemm(k=0)], "alpha or an extent is 0, or C overlaps"),
        ([gemm(ldb=2)], "alpha or an extent is 0, or C overlaps"),
        ([gemm(ldc=5)], "alpha or an extent is 0, or C overlaps"),
        ([gemm(lda=5)], "alpha or an extent is 0, or C overlaps"),
        ([gemm(transa=3)], "alpha or an extent is 0, or C overlaps"),
        ([gemm("cublasSgemv_v2", incy=2)], "the vector is not contiguous"),
        ([gemm("cublasSgemv_v2", incx=-1)], "the vector is not contiguous"),
        ([gemm("cublasSgemmStridedBatched", count=2)], "the library has no kernel for it"),
        ([gemm("cublasSgemmStridedBatched", count=-1)], "alpha or an extent is 0, or C overlaps"),
        (
            [gemm("cublasSgemmStridedBatched", count=2, stride_a=0, stride_b=6, stride_c=13)],
            "the library has no kernel for it",
        ),
        (
            [gemm("cublasSgemmStridedBatched", count=2, stride_a=18, stride_b=6, stride_c=12)],
            "the library has no kernel for it",
        ),
        (
            [gemm("cublasSgemmStridedBatched", count=2, stride_a=0, stride_b=7, stride_c=12)],
            "the library has no kernel for it",
        ),
        ([gemm(**WIDE_BATCH, transb=1, ldb=4, stride_b=8, stride_c=12)], "the library has no kernel for it"),
        ([gemm(**WIDE_BATCH, stride_b=6 + 2**32, stride_c=12)], "the library has no kernel for it"),
        ([gemm(**WIDE_BATCH, stride_b=6, stride_c=12 + 2**32)], "the library has no kernel for it"),
        ([gemm(**WIDE_BATCH | {"stride_a": 2**32}, stride_b=6, stride_c=12)], "the library has no kernel for it"),
        (
            [gemm(**WIDE_BATCH, ldb=2**63 - 1, stride_b=-2, stride_c=12)],
            "alpha or an extent is 0, or C overlaps",
        ),  # 2 ldb, wrapped
        (
            [gemm(**WIDE_BATCH | {"count": 2**62 + 1}, stride_b=6, stride_c=12)],
            "alpha or an extent is 0, or C overlaps",
        ),
        ([gemm(A=0)], "alpha or an extent is 0, or C overlaps"),
        ([gemm(A=A + 2)], "alpha or an extent is 0, or C overlaps"),
        ([gemm(B=B + 1)], "alpha or an extent is 0, or C overlaps"),
        ([gemm(C=0)], "alpha or an extent is 0, or C overlaps"),
        ([gemm(C=C + 1)], "alpha or an extent is 0, or C overlaps"),
        ([gemm(transa=1)], "the library has no kernel for it"),
    ],
)
def test_what_a_kernel_does_not_compute_as_cublas_would_is_left(
    fakes: Path, tmp_path: Path, steps: list[Any], reason: str
) -> None:
    pack = fabricated_library(tmp_path, tried(Problem(6, 2, 3, "f32")))
    played = play(fakes, steps, pack=pack)
    assert played.launches == []
    assert played.left[0].split()[0] == steps[-1][0]
    if steps[-1][1].get("transa") != 3:  # which is no operation, and stands nowhere
        assert by_reason(played) == {reason: 1}


@pytest.mark.parametrize("is_first", [True, False])
def test_what_is_left_does_not_decide_for_what_looks_alike(fakes: Path, tmp_path: Path, is_first: bool) -> None:
    fit, unfit = gemm("cublasDgemv_v2", 6, 3), gemm("cublasDgemv_v2", 6, 3, incy=2)
    pack = fabricated_library(tmp_path, tried(Problem(6, 1, 3, "f64")))
    steps = [fit, unfit] * 2 if is_first else [unfit, fit] * 2
    played = play(fakes, steps, pack=pack)
    assert (len(played.launches), len(played.left)) == (2, 2)
    (one,) = played.seen
    assert (one.calls, one.taken) == (4, 2)


@pytest.mark.parametrize("routine", ["cublasDgemm_v2", "cublasZgemm_v2_64"])
@pytest.mark.parametrize("math", [TENSOR_OP_MATH, TF32_MATH, BF16X9_MATH, FP64_EMULATED_MATH])
def test_modes_of_single_precision_do_not_concern_double(fakes: Path, pack: Path, routine: str, math: int) -> None:
    played = play(fakes, [["cublasSetMathMode", math], gemm(routine)], pack=pack)
    assert (len(played.launches), len(played.left)) == ((0, 1) if math == FP64_EMULATED_MATH else (1, 0))


@pytest.mark.parametrize(
    ("type_", "compute", "exact"), [(0, 68, (0, 2)), (4, 68, (0, 2)), (2, 68, (0, 1, 2)), (14, 68, (0, 1, 2))]
)
def test_the_modes_of_a_type_that_round_as_kernels_do(
    fakes: Path, pack: Path, type_: int, compute: int, exact: tuple[int, ...]
) -> None:
    types = dict.fromkeys(("type_a", "type_b", "type_c"), type_)
    for mode in range(5):
        steps = [["cublasSetMathMode", mode], gemm("cublasGemmEx", **types, compute=compute)]
        assert len(play(fakes, steps, pack=pack).launches) == (mode in exact), mode


def test_matrices_that_lie_side_by_side_do_not_overlap(fakes: Path, pack: Path) -> None:
    gap = gemm(transa=1, m=6, n=2, k=3, lda=5, C=A + 4 * (5 * 5 + 3))  # A has no gap behind its last column
    played = play(fakes, [gemm(C=A + 4 * 18), gemm(C=B - 4 * 12), gemm(C=B + 4 * 6), gap], pack=pack)
    assert (len(played.launches), by_reason(played)) == (4, {})


@pytest.mark.parametrize("wrong", [{"A": 0}, {"A": A + 2}, {"C": C + 1}, {"alpha": [0.0, 0.0]}, {"C": A}])
def test_a_call_with_a_wrong_argument_does_not_decide_for_others(
    fakes: Path, pack: Path, wrong: dict[str, Any]
) -> None:
    played = play(fakes, [gemm(**wrong), gemm(), gemm(**wrong), gemm()], pack=pack)
    assert played.told == ""
    assert len(played.launches) == 2
    assert by_reason(played) == {"alpha or an extent is 0, or C overlaps": 2}


def test_a_kernel_that_cannot_be_started_is_tried_three_times(fakes: Path, pack: Path) -> None:
    failing = [["fake_fail", "cuLaunchKernel", 700], *[gemm()] * 5, ["fake_fail", "", 0], gemm()]
    played = play(fakes, [*failing, gemm("cublasDgemm_v2")], pack=pack)
    assert played.told.count("a product is left to cuBLAS: ") == played.told.count("\n") == 3
    assert by_reason(played) == {"the kernel could not be started": 6}
    assert len(played.launches) == 1  # another kernel's launch
    once = [["fake_fail", "cuLaunchKernel", 700], gemm(), ["fake_fail", "", 0], gemm()]
    assert len(play(fakes, once, pack=pack).launches) == 1


def test_a_choice_that_fails_does_not_decide_for_others(fakes: Path, pack: Path) -> None:
    """The kernel of the first could not be loaded."""
    steps = [["fake_fail", "cuModuleLoadData", 2], gemm(), ["fake_fail", "", 0], gemm()]
    played = play(fakes, steps, pack=pack)
    assert (len(played.launches), len(of_the_program(played.left))) == (1, 1)


def test_without_memory_for_a_workspace_a_product_is_left(fakes: Path, pack: Path) -> None:
    split = gemm(m=70, n=9, k=3, transa=1)
    played = play(fakes, [["fake_memory", 0], *[split] * 4, ["fake_memory", 1 << 30], split], pack=pack)
    assert by_reason(played) == {"no memory for a workspace": 4}
    assert len(played.launches) == 1


def test_a_complex_factor_is_zero_by_both_parts(fakes: Path, pack: Path) -> None:
    factors = [[0.0, 2.0], [2.0, 0.0], ZERO]
    for routine in ("cublasCgemm_v2", "cublasZgemm_v2"):
        played = play(fakes, [gemm(routine, alpha=alpha) for alpha in factors], pack=pack)
        assert (len(played.launches), len(played.left)) == (2, 1)


@pytest.mark.parametrize(
    ("type_", "compute", "is_taken"),
    [(0, 68, True), (0, 69, True), (0, 77, False), (0, 74, False), (1, 70, True), (1, 68, False), (2, 68, True),
     (2, 64, False), (14, 68, True), (4, 68, True), (5, 70, True), (5, 71, True), (28, 68, False)],
)  # fmt: skip
def test_types_that_are_summed_up_as_kernels_do_are_taken(
    fakes: Path, pack: Path, type_: int, compute: int, is_taken: bool
) -> None:
    of_b = {"type_a": type_ if type_ != 28 else 0, "type_b": type_, "type_c": type_, "compute": compute}
    played = play(fakes, [gemm("cublasGemmEx", **of_b)], pack=pack)
    assert (len(played.launches), len(played.left)) == ((1, 0) if is_taken else (0, 1))


def test_a_product_that_cublas_is_expected_to_be_faster_at_is_left(fakes: Path, tmp_path: Path) -> None:
    rows, sources = winners(tmp_path, tried(Problem(6, 2, 3, "f32")))
    for us, launches in ((470.0, 0), (530.0, 1)):  # the kernel takes 500
        told = vendor_measurement(us)
        row = replace(rows[0], cublas_us=us, cublas_right=1, cublas_routine=told.routine)
        cubins = {(row.source_digest, bits, "sm_90a"): b"cubin\0" for bits in (32, 64)}
        path = tmp_path / f"lib{launches}.so"
        path.write_bytes(library_bytes([(row, sources[row.trial_id])], cubins, path.name, NOTHING_KNOWN))
        played = play(fakes, [gemm()], pack=path)
        assert len(played.launches) == launches
        assert by_reason(played) == ({} if launches else {"cuBLAS is expected to be as fast": 1})
