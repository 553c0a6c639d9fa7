"""The base class of all kernel families.

A kernel is a module or a package in this folder. Its `FAMILIES` has one family for each way to multiply, such as FMAs
or tensor cores, and each family has a CUDA template.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import Any, ClassVar, Generic, TypeVar

from tsm2_tune.generator.config import KernelConfig, Launch, Periods, Resources, Traffic
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.device.occupancy import Occupancy, occupancy
from tsm2_tune.generator.problem import FMA_DTYPES, Problem
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.generator.space.grid import Grid
from tsm2_tune.generator.space.guidelines import Guidelines
from tsm2_tune.generator.space.rules import Rule
from tsm2_tune.generator.tiling import Tiling

C = TypeVar("C", bound=KernelConfig)

# The factor on a kernel's time, without its launch, if contiguous rows or columns of operands are not whole 16-byte
# vectors. Measured on an H200: 0 to 6 % more for loads into registers, 13 to 59 % more for copies to shared memory.
WITHOUT_VECTORS, STAGED_WITHOUT_VECTORS = 1.03, 1.3
# The same is so many times as large for FMA kernels of 16-bit elements, of which a vector has eight. Without this
# factor, at 97 unseen shapes on an H200, measured over expected time is 0.7 to 5.7, median 1.2.
FACTOR_FOR_16_BITS = 1.5
MOST_PRODUCTS = 2**16 - 1  # the largest batch of a kernel whose grid has a product for each z
MOST_DEPTH = 64  # the largest step along k for which `tiling` counts a partial step as a whole one


class Family(ABC, Generic[C]):
    """A kernel family: one CUDA template with its tunables, rules, resources and launch."""

    name: ClassVar[str]
    summary: ClassVar[str]  # one sentence for people
    template: ClassVar[str]  # file name in tsm2_tune/templates
    dtypes: ClassVar[tuple[str, ...]] = FMA_DTYPES  # the types that the template supports
    rules: ClassVar[tuple[Rule, ...]]  # the family's own rules, applied before those of hardware and guidelines
    without_vectors: ClassVar[float] = WITHOUT_VECTORS  # see Tiling.without_vectors
    c_vector_bytes: ClassVar[int] = 0  # see Tiling.c_vector_bytes
    on_tensor_cores: ClassVar[bool] = False  # whether tensor cores compute the products
    beside_resources: ClassVar[tuple[str, ...]] = ()  # tunables that do not affect `resources`; others may
    is_batched: ClassVar[bool] = False  # whether the kernel computes batches of products, and nothing else
    has_batches: ClassVar[bool] = False  # whether the kernel also has a version for batches, see Launch.batched
    only_by_name: ClassVar[bool] = False  # whether a search skips the family unless the user names it
    config_type: type[C]

    def grids(self) -> Iterable[Grid[C]]:
        """Return the grids of the family's configurations before any rule drops some, in a fixed order.

        Return no grids if the family stores its configurations in tables instead (`kept_in_tables`).
        """
        return ()

    def configurations(self) -> Iterator[C]:
        """Yield every configuration once, in a fixed order, before any rule drops some."""
        return chain.from_iterable(self.every_grid)

    @abstractmethod
    def resources(self, config: C, problem: Problem) -> Resources:
        """Return the estimated resources of a thread block: threads, registers, shared memory, bytes in flight."""

    @abstractmethod
    def launch(self, config: C, problem: Problem) -> Launch:
        """Return the kernel's launch. It is the same for every shape with this element type and layout."""

    @abstractmethod
    def traffic(self, config: C, problem: Problem) -> Traffic:
        """Return the bytes that the kernel reads and writes for this problem if beta = 0, with repeated reads."""

    @abstractmethod
    def periods(self, config: C, problem: Problem) -> Periods:
        """Return, for each of m, n and k, the extent of the kernel's longest tile.

        Verification tries problems with every remainder of m, n and k modulo these extents.
        """

    def share_step(self, config: C, problem: Problem) -> int:
        """Return the unit by which k is split: each split except the last is a multiple of it."""
        return self.periods(config, problem).k

    def k_per_pass(self, config: C) -> int:
        """Return the largest k for which C is written only once; 0 if C is written once for any k."""
        return 0

    def tiling(self, config: C, problem: Problem, resident: int) -> Tiling:
        """Return how the kernel divides its work, from which a model predicts the kernel's time.

        `resident` is the number of blocks that fit on a multiprocessor.
        """
        launch = self.launch(config, problem)
        tiles = int(config.tunables.get("row_tiles", 1)) if "row_tiles" in config.launch_tunables() else 1
        step = self.share_step(config, problem)
        return Tiling(
            resident=resident,
            tile_m=launch.rows_per_block // tiles,
            tile_n=launch.columns_per_block,
            k_step=step,
            k_per_pass=self.k_per_pass(config),
            without_vectors=self._without_vectors(problem),
            k_padding=step ** (step <= MOST_DEPTH),  # 1 for a long step; of a table, an array
            c_vector_bytes=self.c_vector_bytes,
        )

    def _without_vectors(self, problem: Problem) -> float:
        """Return the factor of Tiling.without_vectors, before it is fitted to measured times."""
        has_narrow_fma = problem.dtype.element_bytes == 2 and not self.on_tensor_cores
        return self.without_vectors * (FACTOR_FOR_16_BITS if has_narrow_fma and self.without_vectors > 1 else 1)

    def matrices_in_smem(self, config: C, problem: Problem) -> tuple[int, int]:
        """Return the copies of a product's A and B in shared memory, and the elements after each line there.

        Both are 0 unless the blocks of the kernel share a batch: they need room for whole products.
        """
        return 0, 0

    def has(self, config: C, problem: Problem) -> bool:
        """Return whether the space has the configuration before any rule drops some.

        A variant of a configuration of the space (`later`) counts too.
        """
        return any(grid.holds(config) for grid in self.every_grid) and (
            config == config.early or config in self.later(config)
        )

    def specialized(self, config: C, problem: Problem) -> C:
        """Return the configuration for the problem: with its extents, if the kernel has code for given extents."""
        return config

    def later(self, config: C) -> tuple[C, ...]:
        """Return variants of the configuration that a search tries only if it is among the fastest."""
        return config.later

    @cached_property
    def every_grid(self) -> tuple[Grid[C], ...]:
        """The grids of the family, computed once."""
        return tuple(self.grids())

    def kept_in_tables(
        self, problem: Problem, limits: DeviceLimits, guidelines: Guidelines, rules: Sequence[Rule]
    ) -> tuple[Sequence[Candidate], Counter[str]] | None:
        """Return the candidates that every rule keeps, and rule name -> number of dropped candidates.

        A candidate counts for the first rule that drops it. The candidates are stored as tables, for a space that is
        too large for one object per configuration. Return None for a space that is small enough for objects.
        """
        return None

    def guidelines(self, problem: Problem, limits: DeviceLimits) -> Guidelines:
        """Return the default guidelines of the family: thresholds that the user may change."""
        return Guidelines()

    def occupancy(self, resources: Resources, limits: DeviceLimits) -> Occupancy:
        """Return the occupancy of a multiprocessor, computed from a block's estimated resources."""
        return occupancy(
            limits, threads=resources.threads, registers=resources.registers, smem_bytes=resources.smem_bytes
        )

    def probe_shapes(self, config: C, problem: Problem) -> tuple[tuple[int, int, int], ...]:
        """Return (m, n, k) of small problems for verification, which together reach every branch of the kernel.

        In these problems, blocks of rows, groups of columns, and steps and tiles along k are whole or partial. The
        sizes follow from the launch and from the tunables `columns`, `prefetch` and `threads` if the family has them.
        """
        rows, tunables = self.launch(config, problem).rows_per_block, config.tunables
        tile_of_rows = self.periods(config, problem).m
        columns, prefetch, tile = (int(tunables.get(name, 1)) for name in ("columns", "prefetch", "threads"))
        one_over = (2 * tile // prefetch + 1) * prefetch + 1  # more than two tiles; the last step has one element
        one_short = (tile // prefetch + 1) * prefetch - 1  # more than one tile; the last step lacks one element
        return (
            (2 * rows + 1, 1, max(prefetch - 1, 1)),
            (min(rows, 66), 2 * columns + 1, one_over),
            (max(min(rows - 1, 1021), 1), max(columns - 1, 1), max(one_short, 1)),
            (tile_of_rows, columns + 1, 2 * prefetch),  # a whole tile of rows with whole steps
        )

    def supports(self, problem: Problem) -> bool:
        """Return whether a search may use this family for the problem."""
        if not problem.is_batched:
            return not self.is_batched and self.fits(problem)
        is_of_grid = self.has_batches and problem.batch <= MOST_PRODUCTS
        return (self.is_batched or is_of_grid) and self.fits(problem)

    def fits(self, problem: Problem) -> bool:
        """Return whether the family computes products of this element type, layout and size, one or a batch of them.

        The default is True if all matrices are column-major and `dtypes` contains the element type.
        """
        return problem.op == "nn" and problem.dtype_name in self.dtypes

    def computes(self, config: C, problem: Problem) -> bool:
        """Return whether the configuration's kernel computes products of this size, even if a search skips them."""
        return True

    def products_per_block(self, config: C, problem: Problem) -> int:
        """Return the most products of a batch that a block computes at a time."""
        return 1

    def proposals(self, problem: Problem, limits: DeviceLimits) -> tuple[C, ...]:
        """Return the configurations that a search tries first, computed from the problem, best first."""
        return ()

    @property
    def proposes(self) -> bool:
        """Whether the family overrides `proposals`.

        If it does not, a search first tries the configurations that were fastest for other problems.
        """
        return type(self).proposals is not Family.proposals

    def context(self, config: C, problem: Problem) -> dict[str, Any]:
        """Return the template's variables besides the tunables, such as `about`, a phrase for its first comment."""
        return {}
