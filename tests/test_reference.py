"""Products on the host to the bit: the reference against exact integers, X^T X against a product with a copy of X."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.conftest import compiled
from tests.on_host import filled, pointer, upload_operand
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.families.staged import StagedDmmaConfig, StagedFmaConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.tuner.compile.compiler import Toolchain
from tsm2_tune.tuner.device.emulator.device import HostDevice
from tsm2_tune.tuner.device.interface import LaunchConfig
from tsm2_tune.tuner.device.support_kernels import LEAST_CHUNK, Support
from tsm2_tune.tuner.verify.error_bounds import Exactness
from tsm2_tune.tuner.verify.operands import Filling, Operand, Operands, Values

SCALE_BITS = 60  # every value that operands are filled with is a multiple of 2 to minus this
SHAPES = [
    "67x5x70", "4x4x1", "1x1x20011", "3x7x63", "9x1x1000", "2x2x4099", "1x9x130", "5x6x3001",
]  # fmt: skip
OPS = {
    "f32": ("nn", "tn", "ntt", "ttt", "tx", "nxt"),
    "f64": ("nn", "tn", "ntt", "ttt", "tx"),
    "f16": ("nn", "tn"),
    "c64": ("nn", "cn", "jtt", "nc", "cx"),
    "c128": ("nj", "cn", "jtt", "jxt"),
}
PROBLEMS = [
    problem
    for dtype, ops in OPS.items()
    for op in ops
    for shape in SHAPES
    if (problem := Problem.parse(f"{shape if 'x' not in op else '5x5x3001'}:{dtype}:{op}"))
]


def elements(device: HostDevice, operand: Operand, problem: Problem) -> npt.NDArray[Any]:
    """The operand's matrix: its real numbers, times 2**SCALE_BITS, as Python's integers; (rows, columns, parts)."""
    dtype = problem.dtype
    parts = np.empty(operand.buffer.size_bytes // dtype.component.element_bytes, dtype.component.numpy_name)
    device.download(operand.buffer, parts)
    lines, length = operand.filling.leading_dimension * dtype.parts, operand.rows * dtype.parts
    first = operand.front * dtype.parts
    whole = [parts[first + lines * column :][:length] for column in range(operand.columns)]
    matrix = np.array(whole, np.float64).reshape(operand.columns, operand.rows, dtype.parts)
    exact = (matrix * 2.0**SCALE_BITS).astype(object)
    for index in np.ndindex(exact.shape):
        exact[index] = int(exact[index])
    return exact if operand.row_major else exact.swapaxes(0, 1)


def exact_product(device: HostDevice, operands: Operands) -> npt.NDArray[Any]:
    """A B as the op says, each part the double nearest to it; (m, n, parts)."""
    problem = operands.problem
    a = elements(device, operands.a, problem)
    b = a.swapaxes(0, 1).copy() if problem.is_gram else elements(device, operands.b, problem)
    if problem.dtype.is_complex:
        a, b = (
            np.stack([x[..., 0], -x[..., 1] if conjugated else x[..., 1]], axis=-1)
            for x, conjugated in zip((a, b), problem.conjugated, strict=True)
        )
        (a_re, a_im), (b_re, b_im) = (np.moveaxis(x, -1, 0) for x in (a, b))
        product = np.stack([a_re @ b_re - a_im @ b_im, a_re @ b_im + a_im @ b_re], axis=-1)
    else:
        product = (a[..., 0] @ b[..., 0])[..., np.newaxis]
    nearest = [value / 2 ** (2 * SCALE_BITS) for value in product.ravel()]
    return np.array(nearest).reshape(product.shape)


def worst(operands: Operands) -> npt.NDArray[np.float64]:
    """Return the comparison's report if C may be off by the rounding of its elements."""
    problem, c = operands.problem, operands.c
    operands.support.begin_reports()
    operands.support.compare(
        problem.m, problem.n, problem.k, problem.batch, alpha=1.0, factors=operands.factors, place=0,
        result=(
            *(np.float64(0.0), np.float64(0.0), np.int32(Values.POISON), np.uint64(0), np.int32(0)),
            *(np.uint64(c.address), *c.strides),
            *(np.int64(c.apart * c.rows * problem.dtype.parts), np.int32(c.row_major)),
            *(np.float64(1.001 * problem.dtype.sum.unit_roundoff), np.int32(Exactness.NONE)),
        ),
    )  # fmt: skip
    return operands.support.reports(1)[0].worst


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.text)
def test_only_what_differs_from_the_exact_product_is_wrong(
    device: HostDevice, support_code: bytes, problem: Problem
) -> None:
    operands = Operands(device, Support(device, support_code, problem.dtype_name), problem, index_bits=32)
    for seed, operand in enumerate(operands.every):
        operand.fill(Filling(operand.rows, Values.UNIFORM, seed))
    product = exact_product(device, operands)
    upload_operand(device, operands.c, problem, product)
    found = worst(operands)
    assert found[:, 4].sum() == 0
    assert found[:, 0].max() <= 1

    row, column, part = problem.m // 2, problem.n - 1, problem.dtype.parts - 1
    product[row, column, part] += 4
    upload_operand(device, operands.c, problem, product)
    found = worst(operands)
    assert found[:, 4].sum() == 1
    top = found[found[:, 0].argmax()]
    assert top[1] == (column * problem.m + row) * problem.dtype.parts + part
    assert abs(top[2] - top[3] - 4) < 0.05


def test_every_thread_has_work_and_neighbours_read_neighbours(device: HostDevice, support_code: bytes) -> None:
    support, many, few = Support(device, support_code, "f32"), 10**9, 2
    split = {
        (many, 10**6, True): (1, 1), (few, LEAST_CHUNK - 1, True): (1, 1), (few, 5 * LEAST_CHUNK, True): (5, 1),
        (few, 77 * LEAST_CHUNK, False): (77, 1), (few, 77 * LEAST_CHUNK, True): (64, 32),
    }  # fmt: skip
    assert {(m, k, along): support.split(m, k, along_k=along) for m, k, along in split} == split


# --- A matrix times itself, staged once ---


def product(
    toolchain: Toolchain,
    config: KernelConfig,
    problem: Problem,
    x: npt.NDArray[np.float64],
    y: npt.NDArray[np.float64],
    edit: Callable[[str], str] = str,
) -> npt.NDArray[np.float64]:
    """X^T Y of row-major matrices with as many columns; X's own memory is that of Y where both are one array."""
    source = render(problem, config)
    binary = compiled(edit(source.text), source.kernel, toolchain, source.defines)
    device, launch, (rows, n) = HostDevice(seed=1), source.launch, x.shape
    found, counters = np.zeros((n, n)), np.zeros(launch.counters(n, n), np.uint32)
    c, partials, ends = (filled(device, one) for one in (found, np.zeros(launch.partial_elements(n, n)), counters))
    a = filled(device, x)
    b, ld, extents = a if y is x else filled(device, y), np.int32(n), (np.int32(n), np.int32(n), np.int32(rows))
    scaled = (np.float64(0), pointer(c), ld, pointer(partials), pointer(ends))
    device.load(binary.code, source.kernel)(
        (*extents, np.float64(1), pointer(a), ld, pointer(b), ld, *scaled),
        LaunchConfig(launch.blocks(n, n), launch.threads, smem_bytes=launch.smem_bytes),
    )  # fmt: skip
    device.synchronise()
    device.download(c, found)
    device.close()
    return found


SYMMETRIC = (
    StagedFmaConfig(128, 128, 16, 16, 64, 2, 0, splits=2, min_blocks=1, rows=8, columns=8, step=1),
    StagedFmaConfig(128, 32, 16, 16, 16, 3, 1, splits=2, min_blocks=1, rows=8, columns=8, step=1),
    StagedDmmaConfig(128, 128, 16, 16, 32, 3, 1, splits=2, min_blocks=1, strips=1, octets=2, fragment_prefetch=1),
)


@pytest.mark.parametrize("config", SYMMETRIC, ids=lambda config: config.text)
def test_a_matrix_times_itself_gives_the_bits_that_its_copy_gives(toolchain: Toolchain, config: KernelConfig) -> None:
    """Staged once, whole tiles and tiles beside the diagonal, whole chunks and the rest of k."""
    problem = Problem(15, 15, 1003, "f64", "nt")
    x = np.random.default_rng(1).uniform(-1, 1, (problem.k, problem.m))
    once, twice = (product(toolchain, config, problem, x, y) for y in (x, x.copy()))
    assert once.tobytes() == twice.tobytes()
    assert np.abs(once.T - x.T @ x).max() < 1e-12
    only_one = product(toolchain, config, problem, x, 2 * x, lambda text: text.replace("A == B && lda", "lda"))
    assert not np.allclose(only_one, 2 * once), "X^T Y would be staged once too"
