"""The core's choice for batches: which kernels compute them, their launch, and batches that are one product."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from tests.predicted import GPU, RATES, SMS, core, measured
from tsm2_tune.generator.families.small import FAMILIES, SmallConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.tiling import Tiling
from tsm2_tune.runtime.choice.choose import Layout, core_record
from tsm2_tune.runtime.choice.core import NO_KERNEL, PREDICTED, TUNED, CoreTime
from tsm2_tune.runtime.choice.launch import ONE_EACH, SHARED, Launch
from tsm2_tune.runtime.choice.winners import MERGED_COLUMNS, MERGED_ROWS
from tsm2_tune.tuner.packs.core_pack import MeasuredKernel

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("toolchain", "session_cache"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler"),
]
PLAIN = (Tiling(6, 128, 0, 0, 0, 1.0), Launch(128, 128, 4096))
EACH = (Tiling(6, 128, 0, 64, 0, 1.0), Launch(128, 128, 4096, splits=2, batched=ONE_EACH))
IN_BLOCKS = Launch(128, 1, 16384, splits=8 * SMS, persistent=True, batched=SHARED)
SHARING = (Tiling(8, 1, 0, 0, 0, 1.0), IN_BLOCKS)
SINGLE = measured(PLAIN, (100_000, 8, 8), 20.0)
BATCH_EACH = measured(EACH, (100, 8, 640), 20.0, batch=500)
BATCH_SHARED = measured(SHARING, (8, 8, 8), 500.0, batch=1_000_000)


def batch(shape: tuple[int, int, int], count: int, op: str = "nn") -> bytes:
    return Layout.of_op("f32", shape, op, count).record


def test_kernels_of_batches_compute_batches_and_others_single_products() -> None:
    for kernel in (SINGLE, BATCH_EACH, BATCH_SHARED):
        one, is_single = core(kernel), kernel is SINGLE
        assert (one.choose(batch((8, 8, 8), 1), GPU).reason == NO_KERNEL) != is_single
        for count in (2, 3, 65535):
            assert (one.choose(batch((8, 8, 8), count), GPU).reason == NO_KERNEL) == is_single
    assert core(BATCH_EACH).choose(batch((8, 8, 8), 65536), GPU).reason == NO_KERNEL
    assert core(BATCH_SHARED).choose(batch((8, 8, 8), 2**31 - 1), GPU).batch_count == 2**31 - 1
    for count in (0, -1, 2**31, 2**62):
        assert core(*map(replace, (SINGLE, BATCH_SHARED))).choose(batch((8, 8, 8), count), GPU).reason == NO_KERNEL


@pytest.mark.parametrize("count", [2, 7, 500, 65535])
@pytest.mark.parametrize("shape", [(100, 8, 640), (1, 1, 1), (257, 5, 1000)])
def test_each_product_has_blocks_and_a_workspace(shape: tuple[int, int, int], count: int) -> None:
    found = core(BATCH_EACH).choose(batch(shape, count), GPU)
    m, n, k = shape
    launch = EACH[1].resized(found.rows_per_block, found.splits)
    assert (found.grid_x, found.grid_y, found.grid_z) == (*launch.grid(m, n), count)
    assert found.partials_stride == -(-launch.partial_elements(m, n) // 4) * 4
    assert found.partials_bytes == 4 * count * found.partials_stride
    assert (found.counters_stride, found.counters_bytes) == (launch.counters(m, n), 4 * count * launch.counters(m, n))
    assert (found.m, found.n, found.k, found.batch_count) == (m, n, k, count)
    assert (found.stride_a, found.stride_b, found.stride_c) == (m * k, k * n, m * n)


def test_more_products_leave_fewer_splits_since_they_fill_the_gpu_too() -> None:
    one = core(measured(EACH, (100, 8, 64_000), 20.0, batch=2))
    splits = [one.choose(batch((100, 8, 64_000), count), GPU).splits for count in (4, 64, 65535)]
    assert splits == sorted(splits, reverse=True)
    assert splits[0] > splits[1] > splits[2] == 1


def test_blocks_that_share_a_batch_have_no_workspace() -> None:
    found = core(BATCH_SHARED).choose(batch((8, 8, 8), 4_000_000), GPU)
    assert (found.grid_x, found.grid_y, found.grid_z) == (found.splits, 1, 1) == (8 * SMS, 1, 1)
    assert (found.partials_bytes, found.counters_bytes, found.partials_stride, found.counters_stride) == (0, 0, 0, 0)
    assert core(BATCH_SHARED).choose(batch((8, 8, 8), 100), GPU).splits <= 100


def test_a_tuned_batch_is_known_by_its_count() -> None:
    one = core(BATCH_SHARED, measured(SHARING, (8, 8, 8), 300.0, batch=500_000))
    for count, us in ((1_000_000, 500.0), (500_000, 300.0)):
        found = one.choose(batch((8, 8, 8), count), GPU)
        assert (found.reason, found.us, found.measured_batch, found.distance) == (TUNED, us, count, 0.0)
    near = one.choose(batch((8, 8, 8), 900_000), GPU)
    assert (near.reason, near.measured_batch) == (PREDICTED, 1_000_000)
    assert near.distance == pytest.approx(math.log(10 / 9))
    assert "measured at 1000000*8x8x8; with the L2 clean" in one.explanation(near, GPU)


def test_a_batch_takes_the_time_of_its_bytes() -> None:
    """Half and double the products take about half and double the time, less the start."""
    one, own_us = core(measured(SHARING, (8, 8, 8), 200.0, batch=1_000_000)), 200.0
    for factor in (0.25, 0.5, 2, 4):
        us, *_ = one.predict(0, batch((8, 8, 8), int(1_000_000 * factor)))
        assert us == pytest.approx(5 + (own_us - 5) * factor, rel=0.05)
    assert 5 < one.predict(0, batch((8, 8, 8), 4))[0] < 20
    at_least_us = 0.95 * 4 * 3 * 64 * 4_000_000 / RATES.read_gbytes_per_s / 1000
    fast = core(measured(SHARING, (8, 8, 8), 20.0, batch=1_000_000))
    assert fast.predict(0, batch((8, 8, 8), 4_000_000))[0] >= at_least_us > 300
    for strides in ((64, 0, 64), (0, 64, 64)):  # an operand that products share is read once
        shared = core_record("f32", (8, 8, 8), 3 * ((8, 8),), (False, False), False, 1_000_000, strides)
        assert one.predict(0, shared)[0] < one.predict(0, batch((8, 8, 8), 1_000_000))[0]


@pytest.mark.parametrize("dtype", ["f32", "f64", "c128", "bf16"])
@pytest.mark.parametrize(
    ("kilobytes", "stages", "padding", "direct"),
    [(8, 1, 0, 0), (16, 3, 1, 0), (96, 2, 1, 0), (16, 2, 1, 1), (24, 1, 1, 1)],
)
def test_shared_memory_holds_the_products_that_the_family_computes(
    dtype: str, kilobytes: int, stages: int, padding: int, direct: int
) -> None:
    """A kernel that writes C from registers computes the products of one that writes C from shared memory."""
    (family,) = FAMILIES
    config = SmallConfig(128, kilobytes, 2, 2, stages, padding, direct, 2, 16)
    own = Problem(8, 8, 8, dtype, batch=1000)
    winner = replace(BATCH_SHARED.winner, dtype=dtype, batch=1000, launch=family.launch(config, own))
    one = core(MeasuredKernel(winner, None, matrices_in_smem=family.block_plan(config, own).matrices_in_smem))
    sizes, found = (1, 2, 5, 8, 13, 16, 21, 24, 29, 32, 40, 64, 150), set[bool]()
    for m, n, k in product(sizes, sizes, (1, 4, 8, 16, 31, 64)):
        asked = Problem(m, n, k, dtype, batch=3)
        computed = one.choose(Layout.of_op(dtype, (m, n, k), "nn", 3).record, GPU).reason != NO_KERNEL
        assert computed == family.computes(replace(config, direct=0), asked), asked
        found.add(computed)
    assert found == {False, True}


def layout(order: str, rows: int, columns: int, ld: int) -> tuple[int, int]:
    return (ld, 0) if order == "n" else (0, ld)


def offsets(order: str, ld: int, stride: int, shape: tuple[int, int], count: int) -> Any:
    """Return the offset of each element: product, row, column."""
    p, i, j = np.ogrid[:count, : shape[0], : shape[1]]
    return p * stride + (i + j * ld if order == "n" else i * ld + j)


def merged_offsets(found: Any, matrix: int, order: str, count: int, *, by_rows: bool) -> Any:
    """Return the offsets that a kernel of the merged product has for each product's elements."""
    m, n, k = found.m, found.n, found.k
    rows, columns = ((m, k), (k, n), (m, n))[matrix]
    ld = (found.lda, found.ldb, found.ldc)[matrix]
    whole = offsets(order, ld, 0, (rows, columns), 1)[0]
    return np.stack(np.split(whole, count, axis=0 if by_rows else 1))


@pytest.mark.parametrize("count", [2, 5])
@pytest.mark.parametrize("orders", list(product("nt", repeat=3)))
@pytest.mark.parametrize("shape", [(4, 3, 2), (1, 3, 2), (4, 1, 1), (1, 1, 5)])
@pytest.mark.parametrize("by_rows", [True, False])
def test_a_long_matrix_is_one_product_and_no_other_batch_is(
    shape: tuple[int, int, int], count: int, orders: tuple[str, str, str], by_rows: bool
) -> None:
    """Try strides and leading dimensions around those that merge: the one product must have the same elements."""
    op = "".join(orders) if orders[2] == "t" else "".join(orders[:2])
    one = core(measured(PLAIN, (1000, 8, 8), 20.0, op=op), measured(EACH, (8, 8, 8), 20.0, op=op, batch=9))
    m, n, k = shape
    extents, are_merged = ((m, k), (k, n), (m, n)), set[bool]()
    moving = 0 if by_rows else 1  # the operand whose matrices are long; the other is shared
    options = []
    for matrix in (moving, 2):
        rows, columns = extents[matrix]
        length = rows if orders[matrix] == "n" else columns
        lds = {length, length + 1, length * count, length * count + 3}
        steps = {1, rows, columns, rows * columns, rows * columns + 1}
        options.append([(ld, step) for ld in sorted(lds) for step in sorted({*steps, ld * rows, ld * columns})])
    for (ld, stride), (ld_c, stride_c) in product(*options):
        of_each, strides, still = [0, 0, ld_c], [0, 0, stride_c], 1 - moving
        of_each[moving], strides[moving] = ld, stride
        of_each[still] = extents[still][0 if orders[still] == "n" else 1] + 1
        leading = [layout(order, *of, at) for order, of, at in zip(orders, extents, of_each, strict=True)]
        record = core_record("f32", shape, leading, (False, False), False, count, (strides[0], strides[1], stride_c))
        found = one.choose(record, GPU)
        is_merged = found.batch_count == 1
        are_merged.add(is_merged)
        if not is_merged:
            assert (found.merged, found.batch_count, found.grid_z) == (0, count, count)
            continue
        assert found.merged == (MERGED_ROWS if by_rows else MERGED_COLUMNS)
        assert (found.m, found.n, found.k) == ((count * m, n, k) if by_rows else (m, count * n, k))
        for matrix in (moving, 2):
            expected = offsets(orders[matrix], of_each[matrix], strides[matrix], extents[matrix], count)
            assert np.array_equal(merged_offsets(found, matrix, orders[matrix], count, by_rows=by_rows), expected)
    assert are_merged == {False, True}


def test_a_new_c_merges_as_a_and_b_do() -> None:
    one = core(SINGLE, BATCH_SHARED)
    for strides, merged in (((64, 0, 0), 0), ((8, 0, 0), MERGED_ROWS), ((0, 64, 0), MERGED_COLUMNS)):
        leading = ((8 * 1000, 0), (8, 0))
        found = one.choose(core_record("f32", (8, 8, 8), leading, (False, False), False, 1000, strides), GPU)
        assert found.merged == merged
        assert (found.ldc, found.stride_c) == ((8000, 0) if merged == MERGED_ROWS else (8, 0 if merged else 64))
    assert "as one product 8x8000x8" in one.explanation(found, GPU)


def test_what_no_kernel_computes_as_one_product_stays_a_batch() -> None:
    """A Gram matrix of a batch is never one product."""
    record = core_record("f32", (8, 8, 8), ((8000, 0), (8, 0)), (False, False), False, 1000, (8, 0, 0))
    found = core(BATCH_SHARED).choose(record, GPU)
    assert (found.merged, found.batch_count, found.stride_a, found.stride_b) == (0, 1000, 8, 0)
    gram = measured(SHARING, (8, 8, 8), 500.0, op="tx", batch=1_000_000)
    found = core(SINGLE, gram).choose(Layout.of_op("f32", (8, 8, 8), "tx", 1000).record, GPU)
    assert (found.merged, found.kernel, found.stride_a) == (0, 1, 64)


def test_launches_to_time_are_of_the_one_product_too() -> None:
    leading = ((0, 8), (0, 8), (0, 8))
    record = core_record("f32", (100, 8, 8), leading, (False, False), False, 1000, (800, 0, 800))
    found = core(measured(PLAIN, (100_000, 8, 16), 20.0, op="ttt"), BATCH_SHARED).contenders(record, GPU)
    assert found
    assert {(one.m, one.batch_count, one.merged) for one in found} == {(100_000, 1, MERGED_ROWS)}


def test_a_block_of_a_batch_adds_up_one_step_along_k_after_another() -> None:
    """A step is 64 of k. Six blocks are resident on a multiprocessor; twelve take two turns."""
    element = (Tiling(6, 1, 1, 64, 0, 1.0), Launch(1, 1, 4096, splits=2, batched=ONE_EACH))
    steps, shapes = 1000, [(SMS, 1), (SMS, 5), (12 * SMS, 1)]  # products, and splits of k
    times = (CoreTime * 3)(*(CoreTime(1, 1, 64 * steps, count, 0, 1, splits) for count, splits in shapes))
    unsplit, split, in_turn = core(measured(element, (1, 1, 64), 6.0, batch=500)).rates_us(0, times)
    assert unsplit == pytest.approx(0.7 * steps, rel=0.02)
    assert 0.7 * steps / 5 < split < 0.5 * unsplit
    assert in_turn == pytest.approx(2 * unsplit, rel=0.02)


def test_cublas_steps_through_k_and_has_tiles_for_vectors_of_a_batch() -> None:
    one = core(measured(EACH, (16, 16, 10_000), 60.0, op="tn", batch=64, vendor_us=90.0))
    times = [one.choose(batch((16, 16, k), 64, "tn"), GPU).vendor_us for k in (10_000, 80_000)]
    assert times == [90, pytest.approx(8 * 85, rel=0.05)]  # for each of k 0.006 us, and as much of arithmetic
    one = core(measured(SHARING, (8, 8, 8), 500.0, batch=1_000_000, vendor_us=2000.0))
    vector, pair = (one.choose(batch((8, n, 8), 1_000_000), GPU).vendor_us for n in (1, 2))
    assert 0.2 < vector / pair < 0.6
