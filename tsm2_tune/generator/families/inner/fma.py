"""Inner products with fused multiply-adds: a thread loads A and B straight into its registers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from tsm2_tune.generator.families.inner.kernel import CHUNKS_FOR_ALL, InnerConfig, Splits, Streamed
from tsm2_tune.generator.problem import FMA_DTYPES, TF32_DTYPES, Problem
from tsm2_tune.generator.space.grid import Grid
from tsm2_tune.generator.space.rules import REGISTERS_REACHABLE
from tsm2_tune.generator.space.tunables import EvictFirst, MinBlocks, ThreadColumns, ThreadRows, Tunable
from tsm2_tune.generator.split_k import SPLITS_OF_GRIDS, WIDE_SPLIT_RULES
from tsm2_tune.generator.tiles import mirrored, thread_tiles, tile_rules

THREADS = (128, 256, 512)
TILE = (1, 2, 4, 8, 16, 32, 64)  # options of block_m and of block_n
THREAD_TILES = ((8, 8), (4, 4), (8, 4), (8, 16), (16, 16))  # the most rows and columns of C per thread
STEP_STAGES = ((1, 2), (1, 4), (2, 1), (2, 2), (4, 1), (4, 2), (8, 1))
MIN_BLOCKS = (1, 2, 3)
LARGEST_TEAM = 64  # the most threads that share a tile of C


@dataclass(frozen=True, slots=True)
class InnerFmaConfig(InnerConfig):
    family: ClassVar[str] = "inner_fma"

    rows: ThreadRows
    columns: ThreadColumns
    step: Annotated[int, Tunable("k extent of A and B that one thread loads at a time", word="thread")]
    stages: Annotated[int, Tunable("loads that one thread has in registers, in flight or in use")]
    splits: Splits
    min_blocks: MinBlocks
    evict_first: EvictFirst = 1


def team(config: InnerFmaConfig) -> int:
    """Return the number of threads of one k slice, which share a tile of C."""
    return (config.block_m // config.rows) * (config.block_n // config.columns)


def is_half(config: InnerFmaConfig, problem: Problem) -> bool:
    """Return whether a thread computes half of a Gram matrix X^T X and mirrors it, so that it loads X once."""
    return problem.is_gram and team(config) == 1 and config.rows == config.columns


class InnerFma(Streamed[InnerFmaConfig]):
    summary = "transposed tall and skinny times tall and skinny: C in registers, k divided among all threads"
    about = "C in registers, k divided among all threads"
    template = "inner/fma.cu.jinja"
    dtypes = (*FMA_DTYPES, *TF32_DTYPES)  # f32 is more accurate than TF32 requires
    rules = (*tile_rules(TILE), CHUNKS_FOR_ALL, *WIDE_SPLIT_RULES, REGISTERS_REACHABLE)
    rest_steps = 1
    moved_as_doubles = ("f64", "c64", "c128")
    config_type = InnerFmaConfig

    def grids(self) -> Iterable[Grid[InnerFmaConfig]]:
        tiles = thread_tiles(TILE, THREAD_TILES)
        axes = {
            "threads": THREADS,
            "block_m block_n rows columns": tiles,
            "step stages": STEP_STAGES,
            "splits": SPLITS_OF_GRIDS,
            "min_blocks": MIN_BLOCKS,
        }
        where = {"block_m block_n rows columns": lambda config: team(config) <= LARGEST_TEAM}
        return [Grid(InnerFmaConfig, axes, where)]

    def lanes_of_k(self, config: InnerFmaConfig) -> int:
        return config.threads // team(config)

    def registers(self, config: InnerFmaConfig, problem: Problem) -> int:
        rows, columns = config.rows, config.columns
        sums = rows * (rows + 1) // 2 if is_half(config, problem) else rows * columns
        return (sums + self.loaded(config, problem)) * problem.dtype.registers

    def loaded(self, config: InnerFmaConfig, problem: Problem) -> int:
        lines = config.rows + (0 if is_half(config, problem) else config.columns)
        return lines * config.step * config.stages

    def reuse(self, config: InnerFmaConfig) -> int:
        return config.columns

    def probe_shapes(self, config: InnerFmaConfig, problem: Problem) -> tuple[tuple[int, int, int], ...]:
        """Return (m, n, k) of small problems that reach every branch of the kernel.

        The first three problems are those of the base class. In the fourth, k is odd. Verification passes operands
        that are 16-byte aligned and have odd leading dimensions, or operands that are not aligned and have leading
        dimensions of whole vectors. In the last, a tile is partial, and threads must not load past the last vector.
        """
        rows, columns, block_k = config.rows, config.columns, self.block_k(config, problem)
        return (
            *super().probe_shapes(config, problem),
            (config.block_m + rows, config.block_n + columns, 2 * block_k + 1),
            (rows, columns, block_k),
        )

    def context(self, config: InnerFmaConfig, problem: Problem) -> dict[str, Any]:
        gram = {"gram": is_half(config, problem), "mirrored": mirrored(problem)}
        return super().context(config, problem) | gram
