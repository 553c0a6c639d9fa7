"""`Launch`: grid, block and workspace of a kernel for any shape."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

FLAT_SPLITS = 64  # the most partial sums that one block adds up at once
GROUP_SPLITS = 16


@dataclass(frozen=True, slots=True)
class Launch:
    """How a kernel is launched for any shape.

    A block computes a tile of C; with splits, a tile's partial sum over one of `splits` parts of k; if `persistent`,
    one of `splits` equal parts of the work on all tiles. The grid has the tiles in x and the splits in y; if
    `persistent`, `splits` blocks in x.

    With splits the blocks of a tile write their partial sums to a workspace, and the last one adds them up in a fixed
    order and writes C. Beyond `flat_splits` splits, groups of GROUP_SPLITS are summed first in the same way; of so
    many persistent blocks each sums a slice of a tile. The kernel has two more parameters: `partials`, 16-byte
    aligned, with a tile for each tile and split, and for each tile and group; and `counters`, one for each tile and
    one for each group, 0 before and after the kernel. A persistent block has at most two incomplete tiles, its first
    and its last. A kernel with a workspace is right with any number of splits.
    """

    threads: int  # per block
    rows_per_block: int  # rows of C that a block computes
    smem_bytes: int  # dynamic shared memory per block
    columns_per_block: int = 0  # columns of C that a block computes; 0: n
    splits: int = 1  # of k
    flat_splits: int = FLAT_SPLITS  # the most splits whose sums are added up at once
    persistent: bool = False  # the grid has `splits` blocks
    lone_split: bool = False  # a kernel with a workspace is launched with one split

    def with_splits(self, splits: int) -> Launch:
        """Return the launch with another number of splits. It must have a workspace."""
        assert self.has_workspace
        return replace(self, splits=splits, lone_split=splits == 1)

    @property
    def as_rendered(self) -> dict[str, int]:
        """Field -> value, without `lone_split`, which no rendered kernel has."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "lone_split"}

    @property
    def has_workspace(self) -> bool:
        """Whether the kernel has the parameters `partials` and `counters`."""
        return self.splits > 1 or self.lone_split

    def tiles(self, m: int, n: int) -> int:
        """Return the number of tiles of an m x n C."""
        return -(-m // self.rows_per_block) * -(-n // (self.columns_per_block or n))

    def blocks(self, m: int, n: int) -> int:
        """Return the number of blocks of the grid."""
        return self.splits if self.persistent else self.tiles(m, n) * self.splits

    def grid(self, m: int, n: int) -> tuple[int, int]:
        """Return the blocks of the grid in x and in y."""
        return (self.splits, 1) if self.persistent else (self.tiles(m, n), self.splits)

    @property
    def groups(self) -> int:
        """The number of groups of splits that are summed first; 0 with few splits."""
        return -(-self.splits // GROUP_SPLITS) if self.splits > self.flat_splits else 0

    def partial_elements(self, m: int, n: int) -> int:
        """Return the elements of `partials`; 0 without a workspace."""
        if not self.has_workspace:
            return 0
        tiles = self.tiles(m, n)
        sums = self.splits + min(tiles, self.splits) if self.persistent else (self.splits + self.groups) * tiles
        return sums * self.rows_per_block * (self.columns_per_block or n)

    def counters(self, m: int, n: int) -> int:
        """Return the number of 32-bit counters; 0 without a workspace."""
        if not self.has_workspace:
            return 0
        if self.persistent:
            return 2 * self.splits
        return self.tiles(m, n) * (1 + self.groups)
