"""Batches, stood in for: which a kernel computes and how, which go to cuBLAS, and what is recorded of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests import lt_calls as lt
from tests.calls import Call
from tests.fabricated import vendor_measurement, winners
from tests.library_batches import SMALL, Batch, of_shape, play_batches
from tests.library_calls import InProcess, fabricated_library, library_of, tried
from tests.lt_calls import BATCHES, MORE, NO_KERNEL, STRIDE, WRONG, matmul
from tests.on_host import IN_C
from tests.spelling import spelt
from tests.standin_calls import CUDA_TYPES, LETTERS, ONE, Played, by_reason, gemm, play
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


def ways_to_ask(batch: Batch) -> list[list[Any]]:
    """Return calls of each routine that ask for the batch; those of cuBLASLt also with row-major matrices."""
    call, type_, strides = batch.call, CUDA_TYPES[batch.call.dtype], batch.strides
    alpha, beta = ([complex(factor).real, complex(factor).imag] for factor in call.factors)
    named: dict[str, Any] = dict(zip(("lda", "ldb", "ldc"), call.leading, strict=True))
    named |= dict(zip(("stride_a", "stride_b", "stride_c"), strides, strict=True))
    named |= dict(zip(("transa", "transb"), map("NTC".index, call.ops), strict=True))
    named |= {"A": call.a, "B": call.b, "C": call.c, "alpha": alpha, "beta": beta, "count": batch.count}
    named |= {"m": call.m, "n": call.n, "k": call.k}
    types = dict.fromkeys(("type_a", "type_b", "type_c"), type_) | {"compute": lt.COMPUTE_OF[type_]}
    found = [gemm(f"cublasGemmStridedBatchedEx{wide}", **named | types) for wide in ("", "_64")]
    if type_ in (0, 1, 4, 5):
        letter = LETTERS[(0, 1, 4, 5).index(type_)]
        found += [gemm(f"cublas{letter}gemmStridedBatched{wide}", **named) for wide in ("", "_64")]
    for one, order, own in ((call, "c", strides), (call.transposed(), "r", (strides[1], strides[0], strides[2]))):
        for (transa, order_a), (transb, order_b) in product(lt.AS_LAYOUTS[one.ops[0]], lt.AS_LAYOUTS[one.ops[1]]):
            orders = order_a + order_b + order
            in_rows = [{lt.ORDER: 1} if of == "r" else {} for of in orders]
            layouts: dict[str, Any] = {
                name: {"ld": ld, "more": {BATCHES: batch.count, STRIDE: stride} | more}
                for name, ld, stride, more in zip("abd", one.leading, own, in_rows, strict=True)
            }
            at = {"A": one.a, "B": one.b, "C": one.c, "D": one.c, "alpha": alpha, "beta": beta}
            found.append(matmul(one.m, one.n, one.k, type_, transa, transb, orders, **layouts, **at))
    return found


# Batches that a kernel computes


@pytest.mark.parametrize(("dtype", "op"), [(dtype, op) for dtype, ops in OPS.items() for op in ops])
def test_each_routine_launches_what_the_library_launches(
    there: InProcess, fakes: Path, batched: Path, dtype: str, op: str
) -> None:
    batches = [of_shape(dtype, op, 3, 4, 2, 5, gap=gap, pad=pad, alpha=2, beta=3) for gap, pad in ((0, 0), (7, 1))]
    batches += [of_shape(dtype, op, 70_000, 4, 2, 5, shared=shared) for shared in ("A", "B", "AB")]
    for batch in batches:
        asked = ways_to_ask(batch)
        assert {step[0] for step in asked} >= {"cublasGemmStridedBatchedEx", lt.MATMUL}
        expected = there(play_batches, str(batched), [batch])
        played = play(fakes, asked, pack=batched)
        assert (played.told, played.left, expected.statuses) == ("", [], [0])
        assert played.launches == [line for line in expected.log if line.startswith("launch ")] * len(asked)
        assert {one.batches for one in played.seen} == {batch.count}


def test_a_batch_that_is_one_product_gets_the_kernel_of_that(there: InProcess, fakes: Path, batched: Path) -> None:
    in_rows = Batch(Call("f32", "NN", 4, 2, 3, lda=22, ldc=21), 5, (4, 0, 4))
    in_columns = Batch(Call("f32", "NN", 4, 2, 3), 5, (0, 6, 8))
    for batch, mnk in ((in_rows, (20, 2, 3)), (in_columns, (4, 10, 3))):
        expected = there(play_batches, str(batched), [batch])
        assert tuple(expected.launches[0].values(32, "f4")[:3]) == mnk
        played = play(fakes, ways_to_ask(batch), pack=batched)
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


def test_what_cublas_is_expected_to_be_faster_at_is_left(fakes: Path, tmp_path: Path) -> None:
    rows, sources = winners(tmp_path, tried(Problem(6, 2, 3, "f32", "nn", 9), IN_BLOCKS, config=CONFIG))
    row = replace(rows[0], cublas_us=470.0, cublas_right=1, cublas_routine=vendor_measurement(470.0).routine)
    played = play(fakes, [strided(count=9)], pack=library_of(tmp_path / "libtsm2.so", row, sources))
    assert by_reason(played) == {"cuBLAS is expected to be as fast": 1}


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


@pytest.mark.parametrize(("place", "shared"), [(0, "A"), (41, ""), (41, "A"), (30, "B")])
@pytest.mark.parametrize("many", [False, True])
def test_each_product_is_compared(fakes: Path, batched: Path, place: int, shared: str, many: bool) -> None:
    """C's matrices have a gap behind them. A kernel writes one number of the second or the last."""
    count = 3 if many else 2
    place -= 15 * (not many and place > 15)
    named = {"count": count, "stride_a": 18 * (shared != "A"), "stride_b": 6 * (shared != "B"), "stride_c": 15}
    memory = {"A": [1.0] * 54, "B": [1.0] * 18, "C": [3.0] * 45}
    right, wrong = (compared(fakes, batched, memory, writes, place, **named) for writes in (3 + 1e-14, 3.5))
    assert (right.seen[0].worst <= 1, wrong.seen[0].worst <= 1) == (True, False)
    assert right.results == wrong.results == [[3.0] * 45]
    product_at, element = divmod(place, 15)
    row, column = element % 6, element // 6
    assert f"{count}*6x2x3 of f64: C[{row}, {column}] of product {product_at} is 3.5 by the kernel" in wrong.told


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
