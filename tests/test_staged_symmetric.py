"""A matrix times itself, staged once, is computed on the host to the bits that its copy gives."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from tests.conftest import compiled
from tests.on_host import filled, pointer
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.families.staged import StagedDmmaConfig, StagedFmaConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.tuner.compile.compiler import Toolchain
from tsm2_tune.tuner.device.emulator.device import HostDevice

pytestmark = pytest.mark.slow


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
    device.load(binary.path, source.kernel)(
        (*extents, np.float64(1), pointer(a), ld, pointer(b), ld, *scaled),
        blocks=launch.blocks(n, n), threads=launch.threads, smem_bytes=launch.smem_bytes,
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
