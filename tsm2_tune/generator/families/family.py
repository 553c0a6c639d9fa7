"""The base class of all kernel families.

A kernel is a module or a package in this folder. Its `FAMILIES` has one family for each way to multiply, such as FMAs
or tensor cores, and each family has a CUDA template.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from types import MappingProxyType
from typing import Any, ClassVar, Generic, TypeVar

from tsm2_tune.generator.config import KernelConfig, Launch, Periods, Resources
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.device.occupancy import Occupancy, occupancy
from tsm2_tune.generator.dtypes import FMA_DTYPES
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.generator.space.grid import Grid
from tsm2_tune.generator.space.guidelines import Guidelines
from tsm2_tune.generator.space.rules import Rule, RuleKind
from tsm2_tune.generator.tiling import VECTOR_BYTES, BlockPlan, Tiling

C = TypeVar("C", bound=KernelConfig)

# The factor on a kernel's time, without its launch, if contiguous rows or columns of operands are not whole 16-byte
# vectors. Measured on an H200: 0 to 6 % more for loads into registers, 13 to 59 % more for copies to shared memory.
WITHOUT_VECTORS, STAGED_WITHOUT_VECTORS = 1.03, 1.3
# The same is so many times as large for FMA kernels of 16-bit elements, of which a vector has eight. Without this
# factor, at 97 unseen shapes on an H200, measured over expected time is 0.7 to 5.7, median 1.2.
FACTOR_FOR_16_BITS = 1.5
MOST_PRODUCTS = 2**16 - 1  # the largest batch of a kernel whose grid has a product for each z
MOST_DEPTH = 64  # the largest step along k for which `tiling_of` counts a partial step as a whole one
WARP_THREADS = 32
BLOCK_THREADS = 1024  # the most threads of a block, on every GPU since Fermi


def rule_of(
    name: str,
    kind: RuleKind,
    because: str,
    keeps: Callable[[Any, Problem], bool],
    of: tuple[str, ...] | None = None,
) -> Rule:
    """Return the rule that keeps a configuration if `keeps` returns true for it and the problem."""
    return Rule(name, kind, because, lambda candidate: keeps(candidate.config, candidate.problem), of)


def vector_elements(problem: Problem) -> int:
    """Return the elements of a vector of VECTOR_BYTES, the widest load."""
    return VECTOR_BYTES // problem.dtype.element_bytes


VECTORS_OF_16_BYTES = rule_of(
    "vectors-of-16-bytes",
    "limit",
    "a thread reads at most 16 bytes at a time",
    lambda config, problem: config.vector <= vector_elements(problem),
    of=("vector",),
)


class Family(ABC, Generic[C]):
    """A kernel family: one CUDA template with its tunables, rules, resources and launch."""

    config_type: type[C]
    name: ClassVar[str]  # that of its configurations
    summary: ClassVar[str]  # one sentence for people
    about: ClassVar[str] = ""  # the first comment of the CUDA text; "": the summary
    template: ClassVar[str]  # file name in tsm2_tune/templates
    dtypes: ClassVar[tuple[str, ...]] = FMA_DTYPES  # the types that the template supports
    ops: ClassVar[tuple[str, ...]] = ()  # the ops that the template supports; (): all
    axes: ClassVar[Mapping[str, Sequence[Any]]] = MappingProxyType({})  # of the grid, see `Grid`
    where: ClassVar[Mapping[str, Callable[[Any], bool]]] = MappingProxyType({})  # conditions of the grid
    rules: ClassVar[tuple[Rule, ...]]  # the family's own rules, applied before those of hardware and guidelines
    without_vectors: ClassVar[float] = WITHOUT_VECTORS  # see Tiling.without_vectors
    on_tensor_cores: ClassVar[bool] = False  # whether tensor cores compute the products
    beside_resources: ClassVar[
        tuple[str, ...]
    ] = ()  # tunables that do not affect the block plan's resources; others may
    is_batched: ClassVar[bool] = False  # whether the kernel computes batches of products, and nothing else
    has_batches: ClassVar[bool] = False  # whether the kernel also has a version for batches, see Launch.batched
    only_by_name: ClassVar[bool] = False  # whether a search skips the family unless the user names it

    def __init_subclass__(cls) -> None:
        if "config_type" in vars(cls):
            cls.name = cls.config_type.family

    def grids(self) -> Iterable[Grid[C]]:
        """Return the grids of the family's configurations before any rule drops some, in a fixed order.

        Return no grids if the family stores its configurations in tables instead (`kept_in_tables`).
        """
        return [Grid(self.config_type, self.axes, self.where)] if self.axes else ()

    def configurations(self) -> Iterator[C]:
        """Yield every configuration once, in a fixed order, before any rule drops some."""
        return chain.from_iterable(self.every_grid)

    @abstractmethod
    def block_plan(self, config: C, problem: Problem) -> BlockPlan:
        """Return a block's resources and tile, and how blocks divide a product of this element type and layout.

        Verification tries problems with every remainder of m, n and k modulo the extents of the tile.
        """

    def resources(self, config: C, problem: Problem) -> Resources:
        """Return the estimated resources of a thread block: threads, registers, shared memory, bytes in flight."""
        return self.block_plan(config, problem).resources

    def periods(self, config: C, problem: Problem) -> Periods:
        """Return, for each of m, n and k, the extent of the kernel's longest tile."""
        return self.block_plan(config, problem).tile

    def launch(self, config: C, problem: Problem) -> Launch:
        """Return the kernel's launch. It is the same for every shape with this element type and layout."""
        return self.block_plan(config, problem).launch(config)

    def tiling(self, config: C, problem: Problem, resident: int) -> Tiling:
        """Return how the kernel divides its work, from which a model predicts the kernel's time.

        `resident` is the number of blocks that fit on a multiprocessor.
        """
        return self.tiling_of(self.block_plan(config, problem), problem, resident)

    def tiling_of(self, block_plan: BlockPlan, problem: Problem, resident: int) -> Tiling:
        """Return the tiling of a kernel with this block plan, see `tiling`."""
        has_narrow_fma = problem.dtype.element_bytes == 2 and not self.on_tensor_cores and self.without_vectors > 1
        tile, step = block_plan.tile, block_plan.k_step or block_plan.tile.k
        of_most_families = {
            "tile_m": tile.m,
            "tile_n": tile.n,
            "k_step": step,
            "k_per_pass": block_plan.k_per_pass,
            "without_vectors": self.without_vectors * (FACTOR_FOR_16_BITS if has_narrow_fma else 1),
            "k_padding": step ** (step <= MOST_DEPTH),  # else 1; a power, since `step` may be an array
        }
        return Tiling(resident, **{**of_most_families, **block_plan.tiling_fields})

    def has(self, config: C, problem: Problem) -> bool:
        """Return whether the space has the configuration, or `later` has it, before any rule drops some."""
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

        In these problems, blocks of rows, groups of columns, and steps and tiles along k are whole or partial. In
        some, k is odd or an extent is one more than whole vectors. Verification passes operands that are 16-byte
        aligned and have odd leading dimensions, and operands that are not aligned.
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
        """Return whether the family computes products of this type, layout and size, one or a batch of them."""
        return problem.dtype_name in self.dtypes and (not self.ops or problem.op in self.ops)

    def lacks(self, problem: Problem) -> str:
        """Return the limit because of which the family computes no product of this size; "" if it has none."""
        return ""

    def computes(self, config: C, problem: Problem) -> bool:
        """Return whether the configuration's kernel computes products of this size, even if a search skips them."""
        return True

    def products_per_block(self, config: C, problem: Problem) -> int:
        """Return the most products of a batch that a block computes at a time."""
        return 1

    def proposals(self, problem: Problem, limits: DeviceLimits) -> tuple[C, ...]:
        """Return the configurations that a search tries first, computed from the problem, best first.

        If there are none, a search first tries what was fastest for other problems.
        """
        return ()

    def context(self, config: C, problem: Problem) -> dict[str, Any]:
        """Return the template's variables besides the tunables."""
        along_a, along_b, along_c = problem.contiguous
        return {
            "about": self.about or self.summary,
            "storage": problem.storage,
            "a_along_k": along_a == "k",
            "b_along_k": along_b == "k",
            "b_along_n": along_b == "n",
            "c_along_n": along_c == "n",
        }
