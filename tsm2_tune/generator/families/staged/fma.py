"""The staged kernel with fused multiply-adds, for X^T Y of tall and skinny matrices X and Y.

In the `inner` kernels each thread loads its operands into registers itself. The larger C is, the more threads load
the same elements, until the load units are the bottleneck. In the staged kernel, every element is copied
asynchronously from device memory to shared memory once, and the threads read it there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, ClassVar

from tsm2_tune.generator.families.family import WARP_THREADS, rule_of, vector_elements
from tsm2_tune.generator.families.staged.kernel import RING, FullConfig, FullKernel, full_rules
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.grid import Grid
from tsm2_tune.generator.space.tunables import ThreadColumns, ThreadRows, Tunable
from tsm2_tune.generator.split_k import SPLITS_OF_GRIDS
from tsm2_tune.generator.tiles import thread_tiles
from tsm2_tune.generator.tiling import VECTOR_BYTES

TILE = (8, 16, 32, 64)  # options of block_m and of block_n
THREAD_TILES = ((8, 8), (8, 16))  # the most rows and columns of C per thread
STEPS = (1, 2, 4)
# Values of the tunables in RING: threads, ring_threads, block_k, stages, copy.
RINGS = (
    (128, 128, 128, 2, 0), (128, 128, 64, 2, 0), (128, 128, 32, 2, 0), (128, 32, 16, 2, 0),
    (128, 128, 128, 4, 1), (128, 128, 32, 2, 1), (128, 128, 32, 3, 1), (128, 32, 16, 2, 1), (128, 32, 16, 3, 1),
    (128, 128, 32, 3, 2), (128, 128, 64, 4, 2),
)  # fmt: skip
MIN_BLOCKS = (1, 3)
PHASE_BYTES = 128  # bytes of shared memory that a warp reads per clock


@dataclass(frozen=True, slots=True)
class StagedFmaConfig(FullConfig):
    family: ClassVar[str] = "staged_fma"

    rows: ThreadRows
    columns: ThreadColumns
    step: Annotated[int, Tunable("products along k that one thread multiplies at a time", word="thread")]


class StagedFma(FullKernel[StagedFmaConfig]):
    summary = (
        "transposed tall and skinny times tall and skinny: both through shared memory, k divided among all threads"
    )
    template = "staged/fma.cu.jinja"
    rules = (
        *full_rules(TILE),
        rule_of(
            "reads-fit-vectors",
            "limit",
            "a thread reads at most 16 bytes of shared memory along k at a time",
            lambda config, problem: "k" not in problem.contiguous[:2] or config.step <= vector_elements(problem),
            of=("step",),
        ),
    )
    config_type = StagedFmaConfig

    def grids(self) -> Iterable[Grid[StagedFmaConfig]]:
        tiles = thread_tiles(TILE, THREAD_TILES)
        tile = "block_m block_n rows columns"
        axes = {tile: tiles, RING: RINGS, "splits": SPLITS_OF_GRIDS, "min_blocks": MIN_BLOCKS, "step": STEPS}

        def fills_ring(config: StagedFmaConfig) -> bool:
            team, least = self.team(config), config.ring_threads * config.step
            return config.block_k * team >= least and team <= config.ring_threads

        return [Grid(StagedFmaConfig, axes, {f"{tile} step {RING}": fills_ring})]

    def team(self, config: StagedFmaConfig) -> int:
        return (config.block_m // config.rows) * (config.block_n // config.columns)

    def registers(self, config: StagedFmaConfig) -> int:
        return config.rows * config.columns + (config.rows + config.columns) * config.step

    def pads(self, config: StagedFmaConfig, problem: Problem) -> tuple[int, int]:
        # Lines along k that a warp reads at once begin in adjacent banks. Two threads read the same elements.
        bytes_of_read = config.step * problem.dtype.element_bytes
        together = min(2 * PHASE_BYTES // bytes_of_read, WARP_THREADS)
        words = max(VECTOR_BYTES, together // self.team(config) * bytes_of_read) % PHASE_BYTES
        along_k = words // problem.dtype.element_bytes
        along_a, along_b, _ = problem.contiguous
        return along_k if along_a == "k" else 0, along_k if along_b == "k" else 0
