"""`Launch`: a kernel's launch parameters, from which grid and workspace follow for any shape."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

FLAT_SPLITS = 64  # default of `Launch.flat_splits`
GROUP_SPLITS = 16  # splits in a group
SHARED, ONE_EACH = 1, 2  # values of `Launch.batched`
SUMS_ALIGNMENT = 4  # elements: the partial sums of each product of a batch begin at a multiple


@dataclass(slots=True, unsafe_hash=True)  # not frozen: see Matrix. No code changes one
class Launch:
    """A kernel's launch parameters, valid for any shape.

    Without splits a block computes one tile of C. With split-k (`splits` > 1) a block computes a tile's partial sum
    over one of `splits` slices of k; the grid has the tiles in x and the splits in y. If `persistent`, the grid has
    `splits` blocks in x, and each computes an equal share of the work on all tiles.

    With split-k the blocks of a tile write their partial sums to a workspace. The block that finishes last adds them
    up in a fixed order and writes C. With more than `flat_splits` splits the sums are first added in groups of
    GROUP_SPLITS, then the groups. With more than `flat_splits` persistent blocks, each block adds up a slice of a
    tile. A persistent block has at most two incomplete tiles, its first and its last. A kernel with a workspace may
    be launched with any number of splits. It has two more parameters. `partials`, aligned to 16 bytes, has room for
    the sums of every tile: one for each split and one for each group. `counters` has an integer for each tile and
    for each group; all are 0 before and after the kernel.

    A `batched` kernel computes a batch of products. If it is SHARED, it is persistent, and its `splits` blocks share
    the batch. If it is ONE_EACH, a block's z is the number of its product; x, y and the workspace are those of a
    single product, once for each. The last parameters are the number of products, the distances in elements between
    the matrices of A, B and C, and, with a workspace, those between the products' partial sums and counters.
    """

    threads: int  # per block
    rows_per_block: int  # rows of C that a block computes
    smem_bytes: int  # dynamic shared memory per block
    columns_per_block: int = 0  # columns of C that a block computes; 0: n
    splits: int = 1  # number of slices of k; of a persistent kernel, number of blocks
    flat_splits: int = FLAT_SPLITS  # the most splits whose sums are added up without groups
    persistent: bool = False  # the grid has `splits` blocks
    lone_split: bool = False  # the kernel has a workspace, though it is launched with one split
    batched: int = 0  # SHARED or ONE_EACH for a kernel of batches; 0 for one of single products

    def with_splits(self, splits: int) -> Launch:
        """Return the launch with another number of splits. The kernel must have a workspace, or be SHARED."""
        return self.resized(self.rows_per_block, splits)

    def resized(self, rows_per_block: int, splits: int) -> Launch:
        """Return the launch with these rows per block and splits. Other splits need a workspace, or SHARED."""
        if rows_per_block == self.rows_per_block and splits == self.splits:
            return self
        assert splits == self.splits or self.has_workspace or self.batched == SHARED
        return Launch(  # `replace` takes longer
            self.threads, rows_per_block, self.smem_bytes, self.columns_per_block, splits, self.flat_splits,
            self.persistent, splits == 1 and self.has_workspace, self.batched,
        )  # fmt: skip

    def of_batch(self, batch: int) -> Launch:
        """Return the launch for this number of products: ONE_EACH if it is a batch that blocks do not share."""
        return self if batch == 1 or self.batched else replace(self, batched=ONE_EACH)

    @property
    def as_rendered(self) -> dict[str, int]:
        """A dict of field -> value, without the fields that follow from the CUDA code."""
        of_code = ("lone_split", "batched")
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name not in of_code}

    @property
    def has_workspace(self) -> bool:
        """Whether the kernel has the parameters `partials` and `counters`."""
        return (self.splits > 1 or self.lone_split) and self.batched != SHARED

    def tiles(self, m: int, n: int) -> int:
        """Return the number of tiles of an m x n matrix C."""
        columns = self.columns_per_block  # in a table of a search space an array, which has no truth value
        return -(-m // self.rows_per_block) * (1 if isinstance(columns, int) and not columns else -(-n // columns))

    def blocks(self, m: int, n: int) -> int:
        """Return the number of blocks of the grid for an m x n matrix C."""
        return self.splits if self.persistent else self.tiles(m, n) * self.splits

    def grid(self, m: int, n: int) -> tuple[int, int]:
        """Return the grid's size in x and y for an m x n matrix C."""
        return (self.splits, 1) if self.persistent else (self.tiles(m, n), self.splits)

    @property
    def groups(self) -> int:
        """The number of groups of splits per tile; 0 if the splits are added up without groups."""
        return -(-self.splits // GROUP_SPLITS) if self.splits > self.flat_splits else 0

    def partial_elements(self, m: int, n: int) -> int:
        """Return the number of elements of `partials` for an m x n matrix C; 0 if the kernel has no workspace."""
        if not self.has_workspace:
            return 0
        tiles = self.tiles(m, n)
        sums = self.splits + min(tiles, self.splits) if self.persistent else (self.splits + self.groups) * tiles
        return sums * self.rows_per_block * (self.columns_per_block or n)

    def counters(self, m: int, n: int) -> int:
        """Return the number of 32-bit counters for an m x n matrix C; 0 if the kernel has no workspace."""
        if not self.has_workspace:
            return 0
        if self.persistent:
            return 2 * self.splits
        return self.tiles(m, n) * (1 + self.groups)
