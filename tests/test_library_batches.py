"""Batches of a C library: what its kernels are given, and what it refuses."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.calls import FACTORS, OPS, SIZES, A, B, C, Call, few, is_launch_of, random_call
from tests.library_batches import ASCENDING, SMALL, Batch, of_shape
from tests.library_calls import (
    INVALID_VALUE,
    NOT_SUPPORTED,
    OUT_OF_MEMORY,
    PLAIN,
    SUCCESS,
    WORKSPACE_TOO_SMALL,
    InProcess,
    Started,
    fabricated_library,
    play,
    problems_of_all,
    tried,
)
from tests.on_host import IN_C
from tests.spelling import spelt
from tsm2_tune.generator.config import ONE_EACH, SHARED, Launch
from tsm2_tune.generator.problem import Problem

pytestmark = IN_C
IN_BLOCKS = Launch(128, 1, 16384, splits=8, persistent=True, batched=SHARED)
IN_Z = replace(PLAIN, splits=2, columns_per_block=4, batched=ONE_EACH)
STRIDED = of_shape("f32", "NN", 3, 6, 2, 3)
BY_POINTERS = replace(STRIDED, arrays=ASCENDING)


# Each call is launched as it is


@pytest.fixture(scope="module")
def of_all(tmp_path_factory: pytest.TempPathFactory, session_cache: None) -> tuple[str, dict[str, Problem]]:
    """A library with a kernel of batches for each type and each of BLAS's operations, and the kernels' problems."""
    trials = [tried(replace(one, batch=9), IN_BLOCKS, config=spelt(SMALL)) for one in problems_of_all()]
    problems = {one.source.digest[:8]: one.problem for _, one in trials}
    return str(fabricated_library(tmp_path_factory.mktemp("of_all"), *trials)), problems


def random_batch(rng: random.Random) -> Batch:
    """Draw a batch with gaps between matrices, or with one matrix for all products."""
    one = replace(random_call(rng, OPS, (1, 2, 3, 6, 8)).in_columns(), stream=None)
    spans = [ld * columns for ld, (_, columns) in zip(one.leading, Batch(one, 1, (0, 0, 0)).extents, strict=True)]
    a, b, c = (span + rng.choice((0, 0, 5)) for span in spans)
    strides = rng.choice((a, a, 0)), rng.choice((b, b, 0)), c
    return Batch(one, *rng.choice(((2, strides), (65_536, strides), (3, strides, ASCENDING))))


def products(batch: Batch) -> list[Call]:
    """Return the calls of the first two products and of the last one."""
    call, size = batch.call, SIZES[batch.call.dtype]
    a, b, c = (size * stride for stride in batch.strides)
    return [replace(call, a=call.a + at * a, b=call.b + at * b, c=call.c + at * c) for at in (0, 1, batch.count - 1)]


def launched(launch: Started, problem: Problem) -> Batch:
    """Return what the problem's kernel was given as a batch."""
    values = launch.values(int(launch.binary.split()[1]), np.dtype(FACTORS[problem.dtype_name]).str)
    m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, count, *strides = values
    ops, order = problem.op[:2].upper(), "C" if problem.op[2:] else "F"
    call = Call(problem.dtype_name, ops, m, n, k, lda, ldb, ldc, alpha, beta, a, b, c, order)
    return Batch(call, count, (strides[0], strides[1], strides[2]))


def test_each_batch_is_launched_as_it_is(there: InProcess, of_all: tuple[str, dict[str, Problem]]) -> None:
    library, problems = of_all

    @few
    @given(st.randoms(use_true_random=True))
    def each_is(rng: random.Random) -> None:
        batches = [random_batch(rng) for _ in range(20)]
        record = there(play, library, batches)
        assert set(record.errors) == {""}, record.errors
        for batch, launch in zip(batches, record.launches, strict=True):
            found = launched(launch, problems[launch.binary.split()[0]])
            assert found.count == batch.count
            assert all(map(is_launch_of, products(found), products(batch))), (batch, launch)

    each_is()


# What a kernel is given


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory, session_cache: None) -> str:
    """A library of a kernel for single products, and of batches one that shares them and one with a workspace."""
    trials = [tried(Problem(6, 2, 3, "f32")), tried(Problem(8, 8, 8, "f32", "nn", 9), IN_BLOCKS, config=spelt(SMALL))]
    trials.append(tried(Problem(500, 8, 8, "f32", "tn", 9), IN_Z))
    return str(fabricated_library(tmp_path_factory.mktemp("batches"), *trials))


def test_blocks_that_share_a_batch_get_its_strides(there: InProcess, path: str) -> None:
    for batch in (STRIDED, BY_POINTERS):
        (launch,) = there(play, path, [batch]).launches
        assert (launch.grid, launch.block, launch.smem_bytes) == ([8, 1, 1], [128, 1, 1], 16384)
        assert launch.values(32, "f4") == [6, 2, 3, 1, A, 6, B, 3, 0, C, 6, 3, 18, 6, 12]


def test_each_product_gets_its_part_of_the_workspace(there: InProcess, path: str) -> None:
    batch = of_shape("f32", "TN", 4, 130, 5, 300)
    record = there(play, path, [("workspace_size", batch), batch])
    (launch,) = record.launches
    (*_, ldc, _, counters, count, stride_a, stride_b, stride_c, of_sums, of_counters) = launch.values(32, "f4")
    assert launch.grid == [4, 2, 4]  # two tiles down and two across
    assert (ldc, count, stride_a, stride_b, stride_c) == (130, 4, 130 * 300, 5 * 300, 130 * 5)
    assert (of_sums, of_counters) == (2 * 4 * 128 * 4, 4)
    allocated = [line for line in record.brief if line.startswith(("allocate", "zero"))]
    assert allocated == [f"allocate {4 * 4 * of_sums}", "allocate 64", f"zero {counters:x} 16 words on 0"]
    needed = record.values["workspace_size"]
    assert needed > 4 * 4 * of_sums + 64
    for size, status in ((needed, SUCCESS), (needed - 256, WORKSPACE_TOO_SMALL)):
        given = there(play, path, [("set_workspace", 0x7000000, size), batch])
        assert given.statuses == [SUCCESS, status]
    assert there(play, path, [("fake_memory", 100), batch]).statuses == [OUT_OF_MEMORY]


def test_one_product_is_a_single_one_and_so_is_a_batch_that_is_one(there: InProcess, path: str) -> None:
    """The rows of A and C side by side in columns that all products share, or the columns of B and C."""
    one = of_shape("f32", "NN", 1, 60, 2, 3, gap=-(10**6))
    pointers = replace(one, strides=(0, 0, 0), arrays=ASCENDING)
    by_one, by_pointers, single = there(play, path, [one, pointers, one.call]).launches
    assert by_one == by_pointers == single
    in_rows = Batch(Call("f32", "NN", 4, 2, 3, lda=22, ldc=21), 5, (4, 0, 4))
    in_columns = Batch(Call("f32", "NN", 4, 2, 3, lda=5, ldb=4, ldc=6), 5, (0, 8, 12))
    apart = replace(in_rows, strides=(4, 6, 4))
    launches = there(play, path, [in_rows, in_columns, apart]).launches
    assert [launch.values(32, "f4")[:11] for launch in launches] == [
        [20, 2, 3, 1, A, 22, B, 3, 0, C, 21], [4, 10, 3, 1, A, 5, B, 4, 0, C, 6], [4, 2, 3, 1, A, 22, B, 3, 0, C, 21],
    ]  # fmt: skip
    (_, merged), (_, of_batch) = (there(play, path, [("choice", one)]).values["choice"] for one in (in_rows, apart))
    assert "as one product 20x2x3" in merged
    assert of_batch.startswith("small:")


def test_a_batch_is_of_gram_matrices_by_its_strides_too(there: InProcess, tmp_path: Path) -> None:
    gram = tried(Problem(6, 6, 3, "f32", "nx", 9), IN_BLOCKS, config=spelt(SMALL))
    path = str(fabricated_library(tmp_path, gram))
    call = Call("f32", "NT", 6, 6, 3, a=A, b=A)
    record = there(play, path, [Batch(call, 3, (18, of_b, 36)) for of_b in (18, 36)])
    assert record.statuses == [SUCCESS, NOT_SUPPORTED]


def test_choices_are_kept_apart(there: InProcess, path: str) -> None:
    """Each differs in one respect from a batch that was chosen before: all launch as they do alone."""
    call = Call("f32", "NN", 4, 2, 3, lda=22, ldb=3, ldc=21)
    others = [
        *(Batch(call, count, (4, 0, 4)) for count in (5, 4, 1)),
        *(Batch(call, 5, other) for other in ((5, 0, 4), (4, 6, 4), (4, 0, 42), (0, 6, 42))),
        *(Batch(one, 5, (4, 0, 4)) for one in (replace(call, ldc=22), replace(call, lda=24), replace(call, m=3))),
    ]
    together = there(play, path, others * 2)
    alone = [launch for one in others for launch in there(play, path, [one]).launches]
    assert together.launches == 2 * alone
    assert len(set(map(str, alone))) == len(others)


@pytest.mark.parametrize("arrays", [(), ASCENDING])
def test_without_products_or_elements_nothing_is_done(there: InProcess, path: str, arrays: tuple[str, ...]) -> None:
    empty = [replace(STRIDED, count=0), replace(STRIDED, call=replace(STRIDED.call, m=0))]
    empty.append(replace(STRIDED, call=replace(STRIDED.call, k=0, beta=1)))
    record = there(play, path, [replace(one, arrays=arrays) for one in empty])
    assert (record.statuses, record.log) == ([SUCCESS] * 3, [])


def test_an_alpha_of_0_clears_each_c(there: InProcess, path: str) -> None:
    """A few products one by one, many of them column by column."""
    by_product = [f"zero {C + at:x} pitch 28 width 24 height 3 on 0" for at in (0, 4 * (7 * 3 + 5))]
    by_column = [f"zero {C + 28 * column:x} pitch {4 * 26} width 24 height 1000 on 0" for column in range(3)]
    for count, log in ((2, by_product), (1000, by_column)):
        record = there(play, path, [of_shape("f32", "NN", count, 6, 3, 3, gap=5, pad=1, alpha=0)])
        assert (record.statuses, record.log) == ([SUCCESS], log)


def by(*arrays: str) -> Batch:
    return replace(STRIDED, arrays=arrays)


def changed(**changes: Any) -> Batch:
    of_batch: dict[str, Any] = {name: changes.pop(name) for name in ("count", "strides", "arrays") if name in changes}
    return replace(STRIDED, call=replace(STRIDED.call, **changes), **of_batch)


FOR_CUBLAS = [
    (of_shape("f32", "TT", 1, 6, 2, 3), "no f32 kernel for op tt is in this library, only for nn"),
    (of_shape("f32", "NT", 3, 6, 2, 3), "no f32 kernel for op nt in this library computes 3*6x2x3: "),
    (of_shape("f32", "TN", 65_536, 6, 2, 3), "no f32 kernel for op tn in this library computes 65536*6x2x3"),
    (of_shape("f32", "NN", 2**31, 6, 2, 3), "no f32 kernel for op nn in this library computes 2147483648*"),
    (of_shape("f64", "NN", 3, 6, 2, 3), "no f64 kernel for op nn in this library computes 3*6x2x3"),
    (by("on device", "", ""), "argument 8, A: its pointers are in device memory"),
    (by("", "on device", ""), "argument 10, B: its pointers are in device memory"),
    (by("", "", "on device"), "argument 13, C: its pointers are in device memory"),
    (by("unequal", "", ""), "argument 8, A: its matrices are not equally far"),
    (by("", "unequal", ""), "argument 10, B: its matrices are not equally far"),
    (by("", "", "unequal"), "argument 13, C: its matrices are not equally far"),
    (by("", "descending", ""), "argument 10, B: each matrix lies before the last"),
]
WRONG = [
    (changed(count=-1), "argument 18, batch_count: -1, expected at least 0"),
    (changed(strides=(-1, 6, 12)), "argument 10, stride_a: -1, expected at least 0"),
    (changed(strides=(18, -6, 12)), "argument 13, stride_b: -6, expected at least 0"),
    (changed(strides=(18, 6, -12)), "argument 17, stride_c: -12, expected at least 0"),
    (changed(strides=(18, 6, 0)), "argument 17, stride_c: 0 elements from a matrix of C to the n"),
    (changed(strides=(18, 6, 11)), "argument 17, stride_c: 11 elements from a matrix of C to the n"),
    (changed(ldc=17, strides=(18, 6, 6)), "argument 17, stride_c: 6 elements from a matrix of C to the n"),
    (changed(strides=(1 << 59, 6, 12)), "argument 10, stride_a: 576460752303423488 times 3 products is"),
    (changed(strides=(18, 6, 1 << 59)), "argument 17, stride_c: 576460752303423488 times 3 products is"),
    (changed(lda=5), "argument 9, lda: 5, expected at least 6"),
    (changed(ldb=2), "argument 12, ldb: 2, expected at least 3"),
    (changed(ldc=5), "argument 16, ldc: 5, expected at least 6"),
    (changed(a=0), "argument 8, A: it is NULL"),
    (changed(b=0x1002), "argument 11, B: its address is not a multiple of 4"),
    (changed(c=0), "argument 15, C: it is NULL"),
    (changed(count=-1, arrays=ASCENDING), "argument 15, batch_count: -1, expected at least 0"),
    (changed(ldb=2, arrays=ASCENDING), "argument 11, ldb: 2, expected at least 3"),
    (changed(ldc=2, arrays=ASCENDING), "argument 14, ldc: 2, expected at least 6"),
    (changed(c=0x1001, arrays=ASCENDING), "argument 13, C: its address is not a multiple of 4"),
    (changed(strides=(18, 6, 11), arrays=ASCENDING), "argument 13, C: 11 elements from a matrix of C"),
    (by("none", "", ""), "argument 8, A: it is NULL"),
    (by("", "none", ""), "argument 10, B: it is NULL"),
    (by("", "", "none"), "argument 13, C: it is NULL"),
    (by("odd", "", ""), "argument 8, A: its addresses are not multiples of 4 bytes"),
]


@pytest.mark.parametrize(("status", "cases"), [(NOT_SUPPORTED, FOR_CUBLAS), (INVALID_VALUE, WRONG)])
def test_what_is_refused_is_told(there: InProcess, path: str, status: int, cases: list[tuple[Batch, str]]) -> None:
    side_by_side = changed(ldc=18, strides=(18, 6, 6))  # matrices of C in each other's rows
    for batch, error in cases:
        record = there(play, path, [batch, STRIDED, by("", "pinned", ""), side_by_side])
        assert record.statuses == [status, *[SUCCESS] * 3]
        assert record.errors[0].startswith(error)


def test_a_batch_is_compared_with_cublas(there: InProcess, path: str) -> None:
    known = of_shape("f32", "NN", 9, 8, 8, 8)
    values = there(play, path, [("compare", known), ("choice", known)]).values
    assert values["compare"] == (SUCCESS, 500.0, 0.0, False)
    assert values["choice"][1].endswith("tuned for this shape; with the L2 clean 500.0 us measured")
    nothing = there(play, path, [("compare", replace(known, count=0))]).values
    assert nothing["compare"] == (NOT_SUPPORTED, 0.0, 0.0, True)
