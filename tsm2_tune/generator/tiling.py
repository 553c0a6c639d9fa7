"""How a kernel divides a product among blocks: `BlockPlan`, and `Tiling`, from which the core predicts times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tsm2_tune.generator.config import KernelConfig, Launch, Periods, Resources

VECTOR_BYTES = 16  # bytes of the widest loads


@dataclass(frozen=True, slots=True)
class Tiling:
    """A kernel's tile sizes and other properties that determine its time, independent of the shape.

    Lines are the columns of a column-major matrix, or the rows of a row-major matrix.
    """

    resident: int  # resident blocks per multiprocessor (occupancy)
    tile_m: int  # rows of a tile of C; a block computes one or more tiles, one below the other
    tile_n: int  # columns of a tile of C; 0: n
    k_step: int  # each split of k but the last is a multiple of this extent; 0: k is not split
    k_per_pass: int  # k after which C is written, and read again by the next pass; 0: k
    without_vectors: float  # factor on the body's time if the kernel cannot use vectors
    k_of_resident_b: int = 0  # largest split of k for which a block keeps its part of B; 0: any
    arithmetic_rate: float = 1.0  # share of the GPU's arithmetic rate that the kernel can reach
    cached_rate: float = 1.0  # rate of rereads, which may hit the L2, relative to the typical rate
    vector_bytes: int = VECTOR_BYTES  # bytes of the widest loads, whose multiple a line must be
    k_padding: int = 1  # k is padded with zeros to a multiple of this
    n_padding: int = 0  # n is padded with zeros to a multiple of this; 0: of tile_n
    is_pipelined: bool = False  # a block loads its next tile's operands while it computes a tile of C
    # Bytes of the widest stores to C. If they are those of an element, only lines of A must be whole vectors. 0: it
    # stores elements, and vectors of B count.
    c_vector_bytes: int = 0
    k_of_vectors: int = 0  # largest k for which the kernel loads A by vectors; 0: any


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """A block's resources and tile, and the division of a product among blocks, independent of the shape.

    In a table of a search space, numbers may be arrays.
    """

    resources: Resources  # estimated
    tile: Periods  # of C and along k
    k_step: int = 0  # each split of k but the last is a multiple of this extent; 0: of tile.k
    k_per_pass: int = 0  # the largest k for which C is written only once; 0: C is written once for any k
    # The copies of a product's A and B in shared memory, and 1 if these are padded. Both are 0 unless blocks share a
    # batch: they need room for whole products.
    matrices_in_smem: tuple[int, int] = (0, 0)
    # The fields of the launch, and of the tiling, that differ from those of most families.
    launch_fields: Mapping[str, Any] = field(default_factory=dict)
    tiling_fields: Mapping[str, Any] = field(default_factory=dict)

    def launch(self, config: KernelConfig) -> Launch:
        """Return the launch of the configuration with this block plan."""
        usual = {
            "threads": self.resources.threads,
            "rows_per_block": self.tile.m * int(getattr(config, "row_tiles", 1)),
            "smem_bytes": self.resources.smem_bytes,
            "columns_per_block": self.tile.n,
            "splits": int(getattr(config, "splits", 1)),
        }
        return Launch(**{**usual, **self.launch_fields})
