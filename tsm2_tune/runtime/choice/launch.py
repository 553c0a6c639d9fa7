"""How a kernel is started for a shape: its grid, and the workspace that it needs."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

FLAT_SPLITS = 64  # the most sums that one block adds up at once
GROUP_SPLITS = 16


@dataclass(frozen=True, slots=True)
class Launch:
    """How a kernel is started for any shape: a block computes a tile of C, or the share of a tile that comes from
    one of `splits` parts of k, or, where `persistent`, one of `splits` equal parts of all tiles.

    A grid has the tiles in x and the splits in y, or, where `persistent`, `splits` blocks in x. Where k is split,
    the blocks of a tile leave their sums in a workspace, and the last of them to end adds these up in a fixed order
    and writes C. Of more than `flat_splits` splits, groups of `GROUP_SPLITS` are added up first, in the same way;
    of so many persistent blocks each adds up a slice of a tile. Such a kernel has two parameters more: `partials`,
    16-byte aligned, which holds a whole tile for each tile and split, and one for each tile and group; and
    `counters`, for each tile one and one for each group, which are 0 before the kernel and after it. A persistent
    block has at most two tiles in part, the first and the last one of its run. Such a kernel is right with any
    number of splits.
    """

    threads: int  # per block
    rows_per_block: int  # of C's tiles
    smem_bytes: int  # dynamic shared memory per block
    columns_per_block: int = 0  # of C's tiles; 0: all n
    splits: int = 1  # of k
    flat_splits: int = FLAT_SPLITS  # the most whose sums are added up at once
    persistent: bool = False  # whether `splits` blocks are all of the grid
    lone_split: bool = False  # whether a kernel with a workspace is started with one split

    def with_splits(self, splits: int) -> Launch:
        """Return the same kernel, which has a workspace, started with other splits."""
        assert self.has_workspace
        return replace(self, splits=splits, lone_split=splits == 1)

    @property
    def as_rendered(self) -> dict[str, int]:
        """Field -> value of a kernel that is started as its configuration says."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "lone_split"}

    @property
    def has_workspace(self) -> bool:
        """Whether the kernel has the two parameters more."""
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
        """Groups of splits that are added up first; 0 if there are few splits."""
        return -(-self.splits // GROUP_SPLITS) if self.splits > self.flat_splits else 0

    def partial_elements(self, m: int, n: int) -> int:
        """Return the number of elements of the workspace's sums, 0 without one."""
        if not self.has_workspace:
            return 0
        tiles = self.tiles(m, n)
        sums = self.splits + min(tiles, self.splits) if self.persistent else (self.splits + self.groups) * tiles
        return sums * self.rows_per_block * (self.columns_per_block or n)

    def counters(self, m: int, n: int) -> int:
        """Counters of 32 bits in the workspace, 0 without one."""
        if not self.has_workspace:
            return 0
        if self.persistent:
            return 2 * self.splits
        return self.tiles(m, n) * (1 + self.groups)
