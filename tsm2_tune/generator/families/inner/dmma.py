"""Inner products on the f64 tensor cores, for f64 and complex numbers: operands are loaded straight into fragments.

For f64 the kernel is for a C that is too large for the registers of a few threads. A C of up to 8 rows or columns is
not padded to 16, since there is an m8n8k4 instruction: its fragment of an 8 x 8 C has one pair of f64 sums per lane,
so most registers are free for loads.

A complex product is four real products. The real and imaginary parts are adjacent in memory, so a 16-byte load moves
both parts. The f64 tensor cores are as fast as f32 FMAs and leave most of the issue slots free. So the kernel
multiplies c64 on the f64 tensor cores too, in double precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any, ClassVar

from tsm2_tune.generator.device.tensor_cores import HAS_F64_TENSOR_CORES
from tsm2_tune.generator.families.family import WARP_THREADS
from tsm2_tune.generator.families.inner.kernel import InnerConfig, Splits, Streamed
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.rules import REGISTERS_REACHABLE
from tsm2_tune.generator.space.tunables import EvictFirst, MinBlocks, Tunable, WarpOctets, WarpStripsOf8
from tsm2_tune.generator.split_k import SPLITS_OF_GRIDS, WIDE_SPLIT_RULES
from tsm2_tune.generator.tiles import tile_rules

TILE = (8, 16, 32, 64)  # options of block_m and of block_n
COVERED = 32  # a complex C of at most as many rows and columns is one tile; a larger tile takes all registers
STRIP_ROWS, OCTET = 16, 8  # rows of the larger mma; rows of the smaller mma, and columns of both


@dataclass(frozen=True, slots=True)
class InnerDmmaConfig(InnerConfig):
    family: ClassVar[str] = "inner_dmma"
    most_strip_rows: ClassVar[int] = STRIP_ROWS

    strips: Annotated[
        int, Tunable("m16 tiles of C (m8 tiles if block_m is 8) that one warp accumulates in registers")
    ]
    octets: Annotated[int, Tunable("n8 tiles of C that one warp accumulates in registers")]
    step: Annotated[int, Tunable("k extent of A and B that one warp loads at a time")]
    stages: Annotated[int, Tunable("loads that one warp has in registers, in flight or in use")]
    splits: Splits
    min_blocks: MinBlocks
    evict_first: EvictFirst = 1

    @property
    def strip_rows(self) -> int:
        """The rows of a strip: of the larger mma instruction if the tile has enough, else of the smaller one."""
        return min(self.most_strip_rows, self.block_m)

    @property
    def warp_tile(self) -> tuple[int, int]:
        """The rows and columns of C that a warp computes."""
        return self.strip_rows * self.strips, OCTET * self.octets

    @property
    def lanes_of_k(self) -> int:
        return self.warps_of_k(*self.warp_tile)


@dataclass(frozen=True, slots=True)
class InnerComplexDmmaConfig(InnerDmmaConfig):
    """A strip has 8 rows: their real and imaginary parts are the 16 rows of an mma instruction."""

    family: ClassVar[str] = "inner_complex_dmma"
    most_strip_rows: ClassVar[int] = OCTET

    strips: WarpStripsOf8
    octets: WarpOctets


Tiles = tuple[tuple[int, int], ...]


def _axes(strip_rows: int, warp_tiles: Tiles, step_stages: Tiles) -> dict[str, Sequence[Any]]:
    """Return the axes without min_blocks. `warp_tiles` are options of (strips, octets)."""
    tiles = [
        (rows, columns, strips, octets)
        for rows, columns, (strips, octets) in product(TILE, TILE, warp_tiles)
        if rows % (min(strip_rows, rows) * strips) == 0 and columns % (OCTET * octets) == 0
    ]
    return {
        "threads": (128, 256, 512),
        "block_m block_n strips octets": tiles,
        "step stages": step_stages,
        "splits": SPLITS_OF_GRIDS,
    }


REAL = _axes(
    STRIP_ROWS,
    ((1, 1), (2, 1), (4, 1), (1, 2), (1, 4), (2, 2), (2, 4), (4, 4), (2, 8)),
    ((8, 2), (8, 3), (8, 4), (16, 1), (16, 2), (16, 3), (32, 1), (32, 2)),
) | {"min_blocks": (1, 2, 3, 4)}
COMPLEX = _axes(OCTET, ((1, 1), (1, 2), (2, 2), (4, 2)), ((8, 1), (8, 2), (8, 4), (16, 2))) | {
    "threads": (128, 256),
    "min_blocks": (1, 3),
}


class InnerDmma(Streamed[InnerDmmaConfig]):
    on_tensor_cores = True
    summary = "transposed tall and skinny times tall and skinny on the f64 tensor cores"
    about = "both operands loaded straight into fragments, k divided among all warps"
    template = "inner/dmma.cu.jinja"
    dtypes: ClassVar[tuple[str, ...]] = ("f64",)
    rules = (HAS_F64_TENSOR_CORES, *tile_rules(TILE), *WIDE_SPLIT_RULES, REGISTERS_REACHABLE)
    most_loads = 9
    config_type = InnerDmmaConfig
    axes = REAL
    where: ClassVar = {"threads block_m block_n strips octets": lambda config: config.lanes_of_k >= 1}

    def registers(self, config: InnerDmmaConfig, problem: Problem) -> int:
        rows, columns = config.warp_tile
        sums = rows * columns // WARP_THREADS * problem.dtype.parts  # in f64
        return 2 * sums + self.loaded(config, problem) * problem.dtype.registers

    def loaded(self, config: InnerDmmaConfig, problem: Problem) -> int:
        return sum(config.warp_tile) * config.step * config.stages // WARP_THREADS

    def reuse(self, config: InnerDmmaConfig) -> int:
        return config.warp_tile[1]

    def probe_shapes(self, config: InnerDmmaConfig, problem: Problem) -> tuple[tuple[int, int, int], ...]:
        rows, columns, block_k = config.block_m, config.block_n, self.block_k(config, problem)
        return (
            *super().probe_shapes(config, problem),
            (rows + 2, columns + 2, 2 * block_k + 1),
            (rows - 2, columns + 2, 3 * block_k + 2),
            (rows - 2, columns - 2, block_k),  # threads must not load past the last vector
        )

    def context(self, config: InnerDmmaConfig, problem: Problem) -> dict[str, Any]:
        return super().context(config, problem) | {"strip_rows": config.strip_rows}


class InnerComplexDmma(InnerDmma):
    summary = "transposed tall and skinny times tall and skinny, complex, on the f64 tensor cores"
    about = "complex operands loaded straight into fragments, k divided among all warps"
    template = "inner/complex_dmma.cu.jinja"
    dtypes = ("c64", "c128")
    rules = (HAS_F64_TENSOR_CORES, *tile_rules(TILE, covered=COVERED), *WIDE_SPLIT_RULES, REGISTERS_REACHABLE)
    most_loads = 10
    most_adders = 1
    divides = True
    is_flat = False
    config_type = InnerComplexDmmaConfig
    axes = COMPLEX
