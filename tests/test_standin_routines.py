"""Batches and triangles, stood in for: which a kernel computes and how, and which go to cuBLAS."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests import lt_calls as lt
from tests.calls import SIZES, A, C, Call
from tests.library_batches import SMALL, Batch, of_shape
from tests.library_calls import InProcess, fabricated_library, tried
from tests.library_calls import play as play_library
from tests.lt_calls import BATCHES, MORE, NO_KERNEL, STRIDE, WRONG, matmul
from tests.on_host import IN_C
from tests.spelling import spelt
from tests.standin_calls import ONE, ZERO, Played, by_reason, gemm, play, ways_to_ask
from tsm2_tune.console.shapes_file import recorded
from tsm2_tune.generator.config import ONE_EACH, SHARED, Launch
from tsm2_tune.generator.problem import Problem
from tsm2_tune.interpose.journal import Written

pytestmark = IN_C
IN_BLOCKS = Launch(128, 1, 16384, splits=8, persistent=True, batched=SHARED)
CONFIG = spelt(SMALL)
EACH = Launch(128, 128, 4096, splits=2, columns_per_block=4, batched=ONE_EACH)
STRIDED = "cublasSgemmStridedBatched"
BY_POINTERS = "its matrices are given by pointers in device memory"
OPS = {"f32": ("NN", "TN", "NT", "TT"), "f64": ("NN", "TN"), "c64": ("NN", "CN"), "c128": ("NN",), "f16": ("NN",),
       "bf16": ("TN",)}  # fmt: skip
WITHOUT_KERNEL: dict[str, Any] = {"routine": "cublasDgemmStridedBatched", "transb": 1}


@pytest.fixture(scope="module")
def batched(tmp_path_factory: pytest.TempPathFactory, session_cache: None) -> Path:
    """A library with kernels of batches for several types and ops, one with a workspace, and one of no batch."""
    problems = [Problem(6, 2, 3, dtype, op.lower(), 9) for dtype, ops in OPS.items() for op in ops]
    trials = [tried(problem, IN_BLOCKS, config=CONFIG) for problem in problems]
    trials += [tried(Problem(6, 2, 3, "f32")), tried(Problem(700, 9, 300, "f32", "tn", 9), EACH)]
    return fabricated_library(tmp_path_factory.mktemp("batched"), *trials)


def strided(m: int = 6, n: int = 2, k: int = 3, count: int = 3, routine: str = STRIDED, **changes: Any) -> list[Any]:
    """A call for a batch whose matrices follow one another."""
    named = {"stride_a": m * k, "stride_b": k * n, "stride_c": m * n} | changes
    return gemm(routine, m, n, k, count=count, **named)


# Batches that a kernel computes


@pytest.mark.parametrize(("dtype", "op"), [(dtype, op) for dtype, ops in OPS.items() for op in ops])
def test_each_routine_launches_what_the_library_launches(
    there: InProcess, fakes: Path, batched: Path, dtype: str, op: str
) -> None:
    batches = [of_shape(dtype, op, 3, 4, 2, 5, gap=gap, pad=pad, alpha=2, beta=3) for gap, pad in ((0, 0), (7, 1))]
    batches += [of_shape(dtype, op, 70_000, 4, 2, 5, shared=shared) for shared in ("A", "B", "AB")]
    for batch in batches:
        asked = [step for step, _ in ways_to_ask(batch.call, batch.count, batch.strides)]
        assert {step[0] for step in asked} >= {"cublasGemmStridedBatchedEx", lt.MATMUL}
        expected = there(play_library, str(batched), [batch])
        played = play(fakes, asked, pack=batched)
        assert (played.told, played.left, expected.statuses) == ("", [], [0])
        assert played.launches == [line for line in expected.log if line.startswith("launch ")] * len(asked)
        assert {one.batches for one in played.seen} == {batch.count}


def test_a_batch_that_is_one_product_gets_the_kernel_of_that(there: InProcess, fakes: Path, batched: Path) -> None:
    in_rows = Batch(Call("f32", "NN", 4, 2, 3, lda=22, ldc=21), 5, (4, 0, 4))
    in_columns = Batch(Call("f32", "NN", 4, 2, 3), 5, (0, 6, 8))
    for batch, mnk in ((in_rows, (20, 2, 3)), (in_columns, (4, 10, 3))):
        expected = there(play_library, str(batched), [batch])
        assert tuple(expected.launches[0].values(32, "f4")[:3]) == mnk
        asked = [step for step, _ in ways_to_ask(batch.call, batch.count, batch.strides)]
        played = play(fakes, asked, pack=batched)
        assert set(played.launches) == {line for line in expected.log if line.startswith("launch ")}
        assert played.left == []


def test_products_of_a_batch_have_their_workspaces_in_a_graph_too(fakes: Path, batched: Path) -> None:
    split = strided(130, 5, 300, transa=1)
    captured = [["cublasSetStream_v2", 7], split, ["fake_capture", 7], split, ["fake_capture", 0]]
    played = play(fakes, captured, pack=batched)
    assert (len(played.launches), played.left) == (2, [])
    own, of_counters, of_graph = (int(one.split()[1]) for one in played.log if one.startswith("allocate"))
    sums_of_a_product = 2 * 4 * 128 * 4  # two splits of four tiles
    assert own == 3 * 4 * sums_of_a_product
    assert of_graph > own + of_counters


# Batches that go to cuBLAS

UNFIT = {
    NO_KERNEL: [strided(**WITHOUT_KERNEL), strided(count=2**31, routine="cublasSgemmStridedBatched_64")],
    WRONG: [
        *(strided(**one) for one in ({"count": 0}, {"count": -1}, {"stride_a": -18}, {"stride_b": -1},
                                     {"stride_c": 0}, {"stride_c": 11}, {"alpha": [0.0, 0.0]})),
        strided(C=(1 << 40) + 4 * 53),  # the last matrix of A
        strided(C=(1 << 40) - 4 * 35),  # the last matrix of C, and the first of A
        strided(C=(1 << 50) + 4 * 17),
    ],
    BY_POINTERS: [
        gemm("cublasSgemmBatched", count=3), gemm("cublasZgemmBatched_64", count=1),
        gemm("cublasGemmBatchedEx", count=3), gemm("cublasGemmBatchedEx_64", count=3),
    ],
}  # fmt: skip


def test_what_is_not_for_a_kernel_is_left(fakes: Path, batched: Path) -> None:
    steps = [step for of_reason in UNFIT.values() for step in of_reason]
    alone, played = play(fakes, steps, standin=False), play(fakes, steps, pack=batched)
    assert [line.split()[:7] for line in played.left] == [line.split()[:7] for line in alone.left]
    assert [line.split()[0] for line in played.left] == [step[0] for step in steps]
    assert (played.launches, by_reason(played)) == ([], {reason: len(found) for reason, found in UNFIT.items()})


def batch_of(count: int = 3, a: int = 18, b: int = 6, d: int = 12, **changes: Any) -> list[Any]:
    layouts = {
        name: {"more": {BATCHES: count, STRIDE: stride}} for name, stride in zip("abd", (a, b, d), strict=True)
    }
    return matmul(**layouts | changes)


OTHER_STRIDE: dict[str, Any] = {"more": {BATCHES: 3, STRIDE: 13}}


def test_what_is_not_for_a_kernel_is_left_to_cublaslt(fakes: Path, batched: Path) -> None:
    wrong = [batch_of(a=-18), batch_of(d=11), batch_of(count=0), matmul(a={"more": {BATCHES: 3, STRIDE: 18}})]
    more = [batch_of(c=OTHER_STRIDE, beta=ONE), batch_of(C=lt.C, D=lt.D, beta=ONE)]
    fit = batch_of(), batch_of(c=OTHER_STRIDE)  # which is not read, as beta is 0
    played = play(fakes, [one for step in wrong + more for one in (step, *fit)], pack=batched)
    assert (len(played.launches), len(played.left), by_reason(played)) == (12, 6, {WRONG: 4, MORE: 2})


def test_strides_decide_apart(fakes: Path, batched: Path) -> None:
    """An invalid stride decides for no other call, and one that is shared for none that is not."""
    kinds = [strided(), strided(stride_c=11), strided(stride_b=0), strided(**WITHOUT_KERNEL)]
    played = play(fakes, kinds * 2, pack=batched)
    assert (len(played.launches), len(played.left), len(played.seen)) == (4, 4, 2)


# Comparing with cuBLAS


def compared(fakes: Path, pack: Path, memory: Any, writes: float, at: int, **named: Any) -> Played:
    """One batch by a kernel that writes one number into C, and by cuBLAS."""
    environment = {
        "FAKE_CUBLAS_MULTIPLIES": "1",
        "FAKE_KERNEL_WRITES": repr(writes),
        "FAKE_KERNEL_WRITES_AT": str(at),
    }
    steps = [["memory", memory], strided(routine="cublasDgemmStridedBatched", **named)]
    played = play(fakes, steps, pack=pack, compared=1, environment=environment)
    assert [one.compared for one in played.seen] == [1]
    return played


@pytest.mark.parametrize(("count", "place", "shared"), [(2, 0, "A"), (2, 26, ""), (3, 41, "A"), (3, 30, "B")])
def test_each_product_is_compared(fakes: Path, batched: Path, count: int, place: int, shared: str) -> None:
    """C's matrices have a gap behind them."""
    named = {"count": count, "stride_a": 18 * (shared != "A"), "stride_b": 6 * (shared != "B"), "stride_c": 15}
    memory = {"A": [1.0] * 54, "B": [1.0] * 18, "C": [3.0] * 45}
    right, wrong = (compared(fakes, batched, memory, writes, place, **named) for writes in (3 + 1e-14, 3.5))
    assert (right.seen[0].worst <= 1, wrong.seen[0].worst <= 1) == (True, False)
    assert right.results == wrong.results == [[3.0] * 45]
    product_at, element = divmod(place, 15)
    where = f"C[{element % 6}, {element // 6}] of product {product_at}"
    assert f"{count}*6x2x3 of f64: {where} is 3.5 by the kernel" in wrong.told


def test_cublas_gets_the_matrices_of_before_the_comparison(fakes: Path, batched: Path) -> None:
    """The kernel writes a number of the last product, and C's matrices have a gap behind them."""
    memory = {"A": [1.0] * 54, "B": [1.0] * 18, "C": [float(at) for at in range(45)]}
    played = compared(fakes, batched, memory, -7, 41, stride_c=15, beta=ONE)
    assert played.results == [[at + 3.0 * (at % 15 < 12) for at in range(45)]]


@pytest.mark.parametrize(("place", "is_right"), [(0, True), (12, False)])
def test_the_bound_is_that_of_the_own_product(fakes: Path, batched: Path, place: int, is_right: bool) -> None:
    """The second product's numbers are small."""
    memory = {"A": [1.0] * 18 + [1e-6] * 18, "B": [1.0] * 12, "C": [3.0] * 12 + [3e-6] * 12}
    played = compared(fakes, batched, memory, memory["C"][place] + 1e-14, place, count=2)
    assert (played.seen[0].worst <= 1) == is_right


# Recording


def test_batches_are_recorded_as_problems(fakes: Path) -> None:
    steps = [
        strided(8, 8, 8, 500_000),
        strided(8, 8, 8, 500_000, stride_a=0, stride_b=65),
        strided(8, 8, 8, 500, stride_a=0),  # one product of 4,000 columns
        strided(8, 4, 5, 70, routine="cublasCgemmStridedBatched", transa=2, lda=5),
        strided(8, 4, 5, 70, stride_b=0, stride_a=8, stride_c=8, lda=8 * 70, ldc=8 * 70),  # one product of 560 rows
        strided(8, 4, 5, 70, stride_a=0, stride_b=20, stride_c=32),  # of 280 columns
        strided(4, 8, 5, 7),
        gemm("cublasDgemmBatched", 8, 4, 5, count=6),
        batch_of(count=11),
    ]
    played = play(fakes, steps, has_times=True)
    found = {one.problem.text if one.problem else "" for one in played.seen}
    assert found == {
        "500000*8x8x8:f32", "4000x8x8:f32:ttt", "70*8x4x5:c64:cn", "560x4x5:f32", "280x8x5:f32:ttt",
        "7*8x4x5:f32:ttt", "6*8x4x5:f64", "11*6x2x3:f32",
    }  # fmt: skip
    lines = list(recorded(Written(played.seen), ["program"]))
    assert any(line.startswith("500000*8x8x8:f32  # 2 times, ") for line in lines)
    assert any(line.startswith(f"# left out because {BY_POINTERS}: 6*8x4x5:f64: 1 time") for line in lines)


def test_gram_matrices_are_recorded_by_their_strides_too(fakes: Path) -> None:
    same: dict[str, Any] = {"transb": 1, "B": 1 << 40, "ldb": 6}
    played = play(fakes, [strided(6, 6, 3, stride_b=of_b, **same) for of_b in (18, 36)])
    assert {one.problem.text for one in played.seen if one.problem} == {"3*6x6x3:f32:nx", "3*6x6x3:f32:nt"}


# syrk and herk: a kernel computes the whole of C in scratch memory, a triangle of which is copied into C

TYPE_OF = {"S": "f32", "D": "f64", "C": "c64", "Z": "c128"}
OPERATIONS = {"syrk": ("NT", "TN"), "herk": ("NC", "CN")}
SCRATCH_BYTES = 2 * 256 * 256 * 16
ROUTINES = [
    *((f"cublas{letter}syrk_v2{wide}", dtype) for letter, dtype in TYPE_OF.items() for wide in ("", "_64")),
    *((f"cublas{letter}herk_v2{wide}", TYPE_OF[letter]) for letter in "CZ" for wide in ("", "_64")),
]


@pytest.fixture(scope="module")
def squares(tmp_path_factory: pytest.TempPathFactory, session_cache: None) -> Path:
    """Return a pack of the products of a matrix with 6 rows and of its transpose, in every type."""
    ops = {dtype: ("nt", "tn", "nc", "cn")[: 2 if dtype[0] == "f" else 4] for dtype in TYPE_OF.values()}
    problems = [Problem(6, 6, 3, dtype, op) for dtype, of_type in ops.items() for op in of_type]
    return fabricated_library(tmp_path_factory.mktemp("squares"), *map(tried, problems))


def syrk(routine: str, is_plain: bool = True, **changes: Any) -> list[Any]:
    across = 2 if "herk" in routine else 1
    plain: dict[str, Any] = {"n": 6, "trans": 0 if is_plain else across}
    return gemm(routine, **plain | changes)


@pytest.mark.parametrize(("routine", "dtype"), ROUTINES)
def test_a_triangle_is_copied_of_what_the_library_computes(
    there: InProcess, fakes: Path, squares: Path, routine: str, dtype: str
) -> None:
    kinds = list(product((0, 1), (ZERO, [0.5, 0.0]), (True, False)))
    steps = [syrk(routine, plain, uplo=uplo, beta=beta, alpha=[2.0, 0.0], ldc=9) for uplo, beta, plain in kinds]
    played = play(fakes, [["cublasSetStream_v2", 77], *steps], pack=squares)
    scratch, size = 1 << 20, SIZES[dtype]
    assert f"allocate {SCRATCH_BYTES}" in played.log
    plain_ops, across = OPERATIONS[routine[7:11]]
    own = [
        Call(dtype, plain_ops if plain else across, 6, 6, 3, alpha=2, beta=beta[0], lda=6 if plain else 3,
             ldb=6 if plain else 3, a=A, b=A, c=scratch, ldc=6)
        for _, beta, plain in kinds
    ]  # fmt: skip
    expected = there(play_library, str(squares), [("set_stream", 77), *own])
    assert expected.statuses == [0] * len(own)
    copied = f"copy {C:x} pitch {9 * size} to {scratch:x} pitch {6 * size} width {6 * size} height 6 on 77"
    cleared = f"set {scratch + size // 2:x} pitch {7 * size} words {size // 8} height 6 on 77"
    packed, letter = scratch + SCRATCH_BYTES // 2, routine[6]
    launches = [line for line in expected.log if line.startswith("launch ")]
    log = [line for line in played.log if line.split()[0] not in ("push", "pop", "load", "function")]
    for launch, (uplo, beta, _) in zip(launches, kinds, strict=True):
        lines = [copied] if beta != ZERO else []
        lines += [launch, cleared] if "herk" in routine else [launch]
        lines.append(f"cublas{letter}trttp stream 4d {uplo} 6 {scratch} 6 {packed}")
        lines.append(f"cublas{letter}tpttr stream 4d {uplo} 6 {packed} {C} 9")
        at = log.index(lines[0])
        assert log[at : at + len(lines)] == lines
        del log[: at + len(lines)]
    assert {one.routine for one in played.seen} == {routine[7:11]}
    assert all(one.is_gram and one.calls == one.taken for one in played.seen)
    assert sum(one.taken for one in played.seen) == len(kinds)


def test_what_cannot_be_computed_so_is_left(fakes: Path, squares: Path) -> None:
    other = syrk("cublasSsyrk_v2", n=257, ldc=257, lda=257), syrk("cublasSsyrk_v2_64", ldc=2**31)
    wrong = (
        *(syrk("cublasSsyrk_v2", uplo=2), syrk("cublasSsyrk_v2", lda=5), syrk("cublasSsyrk_v2", C=A)),
        *(syrk("cublasZherk_v2", trans=1), syrk("cublasCsyrk_v2", trans=2), syrk("cublasZherk_v2", alpha=ZERO)),
    )
    played = play(fakes, [*other, *wrong], pack=squares)
    assert (by_reason(played), played.launches, len(played.left)) == ({NO_KERNEL: 2, WRONG: 6}, [], 8)


def test_what_is_captured_or_shares_its_lane_is_left(fakes: Path, squares: Path) -> None:
    one = syrk("cublasDsyrk_v2")
    captured = [["cublasSetStream_v2", 7], one, ["fake_capture", 7], one, ["fake_capture", 0], one]
    many = [step for stream in range(3, 70) for step in (["cublasSetStream_v2", stream], one)]
    both_names = [["cublasSetStream_v2", 0], one, ["cublasSetStream_v2", 1], one]
    for steps, launches, left in (
        (captured, 2, {"captured, and the kernel is not loaded, or has no workspace": 1}),
        (many, 64, {"more CUDA contexts than are supported": 3}),
        (both_names, 2, {}),
        ([["fake_memory", 0], one, one], 0, {"no memory for a workspace": 2}),
        ([["fake_capture", 7], one], 1, {}),  # on another stream, whose capture does not end
    ):
        played = play(fakes, steps, pack=squares)
        assert (len(played.launches), by_reason(played)) == (launches, left)
        assert not any("capture ended" in line for line in played.log)


def test_without_a_copy_cublas_computes_it(fakes: Path, squares: Path) -> None:
    played = play(fakes, [syrk("cublasDsyrk_v2")] * 5, pack=squares, environment={"FAKE_CUBLAS_PACKS": "13"})
    assert by_reason(played) == {"the kernel could not be started": 5}
    assert (len(played.launches), played.statuses) == (3, [[0] * 5])
    assert sum(line.startswith("cublasDsyrk_v2 ") for line in played.left) == 5


@pytest.mark.parametrize("failing", ["cuMemcpy2DAsync", "cuLaunchKernel", "cuMemsetD2D32Async", "cublasZtrttp"])
def test_what_fails_before_the_copy_leaves_c_to_cublas(fakes: Path, squares: Path, failing: str) -> None:
    refused = [failing] if failing.startswith("cublas") else []
    environment = {"FAKE_CUBLAS_REFUSES": "1"} if refused else {}
    steps = [["fake_fail", failing, 700], syrk("cublasZherk_v2", beta=ONE)]
    played = play(fakes, steps, pack=squares, environment=environment)
    assert by_reason(played) == {"the kernel could not be started": 1}
    assert [line.split()[0] for line in played.left] == [*refused, "cublasZherk_v2"]


def test_a_new_stream_with_an_old_handle_waits_for_the_scratch_memory(fakes: Path, squares: Path) -> None:
    first = syrk("cublasSsyrk_v2")
    steps = [["cublasSetStream_v2", 7], first, first, ["fake_stream_ids", 1000], first, first]
    log = play(fakes, steps, pack=squares).log
    launches = [at for at, line in enumerate(log) if line.startswith("launch ")]
    assert len(launches) == 4
    assert [at for at, line in enumerate(log) if line == "wait for all"] == [launches[2] - 1]
    on_legacy = [["cublasSetStream_v2", 0], first, ["fake_stream_ids", 1000], first]
    assert "wait for all" not in play(fakes, on_legacy, pack=squares).log


def test_a_product_with_a_triangle_is_none_of_the_whole(fakes: Path, squares: Path) -> None:
    whole = gemm("cublasDgemm_v2", 6, 6, 3, transb=1, B=A, beta=ONE)
    played = play(fakes, [whole, syrk("cublasDsyrk_v2"), syrk("cublasDsyrk_v2", uplo=1)], pack=squares)
    assert {one.routine: one.taken for one in played.seen} == {"gemm": 1, "syrk": 2}
