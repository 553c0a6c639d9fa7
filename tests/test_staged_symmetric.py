"""A matrix times itself, staged once, is computed on the host to the bits that its copy gives."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from tests.conftest import compiled
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.families.staged import StagedDmmaConfig, StagedFmaConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.tuner.compile.compiler import Toolchain
from tsm2_tune.tuner.device.emulator.device import HostDevice

pytestmark = pytest.mark.host


def product(
    toolchain: Toolchain,
    config: KernelConfig,
    problem: Problem,
    factors: tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]],
    edit: Callable[[str], str] = str,
) -> npt.NDArray[np.float64]:
    """X^T Y of row-major matrices with as many columns; X's own memory is that of Y where both are one array."""
    source = render(problem, config)
    binary = compiled(edit(source.text), source.kernel, toolchain, source.defines)
    device = HostDevice(seed=1)
    launch, (rows, columns) = source.launch, factors[0].shape
    arrays = [factors[0]] if factors[0] is factors[1] else list(factors)
    arrays += [np.zeros((columns, columns)), np.zeros(launch.partial_elements(columns, columns))]
    buffers = [device.allocate(array.nbytes) for array in arrays]
    for array, buffer in zip(arrays, buffers, strict=True):
        device.upload(array, buffer)
    counters = device.allocate(4 * launch.counters(columns, columns))
    device.upload(np.zeros(launch.counters(columns, columns), np.uint32), counters)
    a, b, c, partials = (np.uint64(buffer.address) for buffer in (buffers[0], *buffers[-3:]))
    extents = (np.int32(columns), np.int32(columns), np.int32(rows), np.float64(1))
    scaled = (np.float64(0), c, np.int32(columns), partials, np.uint64(counters.address))
    kernel = device.load(binary.path, source.kernel)
    kernel(
        (*extents, a, np.int32(columns), b, np.int32(columns), *scaled),
        blocks=launch.blocks(columns, columns),
        threads=launch.threads,
        smem_bytes=launch.smem_bytes,
    )
    device.synchronise()
    found = np.empty((columns, columns))
    device.download(buffers[-2], found)
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
    once, twice = (product(toolchain, config, problem, (x, y)) for y in (x, x.copy()))
    assert once.tobytes() == twice.tobytes()
    assert np.abs(once.T - x.T @ x).max() < 1e-12
    only_one = product(toolchain, config, problem, (x, 2 * x), lambda text: text.replace("A == B && lda", "lda"))
    assert not np.allclose(only_one, 2 * once), "X^T Y would be staged once too"
