"""The interface of every kernel family.

A kernel is a file or a folder beside this one. It lists its families, one for each way to multiply, each with a
template.
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
from tsm2_tune.runtime.choice.predict import Division

C = TypeVar("C", bound=KernelConfig)

# How much longer a kernel takes, without its start, where lines of operands are not whole 16-byte vectors: on an H200
# 0 to 6 % where they stream through registers, 13 to 59 % where shared memory gets them element by element.
ODD_LINES, ODD_STAGED_LINES = 1.03, 1.3
MOST_DEPTH = 64  # the most products that count as one step


class Family(ABC, Generic[C]):
    """One kernel template with its tunables, rules, resources and launch shape."""

    name: ClassVar[str]
    summary: ClassVar[str]  # one sentence for people
    template: ClassVar[str]  # file name in tsm2_tune/templates
    dtypes: ClassVar[tuple[str, ...]] = FMA_DTYPES  # the types that the template supports
    rules: ClassVar[tuple[Rule, ...]]  # the family's own rules, tried before the hardware's and the guidelines
    odd_lines: ClassVar[float] = ODD_LINES  # see Division.odd_lines
    vectors_of_c: ClassVar[bool] = False  # see Division.vectors_of_c
    on_tensor_cores: ClassVar[bool] = False  # whether it computes products there
    beside_resources: ClassVar[tuple[str, ...]] = ()  # tunables at which `resources` does not look, if it says so
    only_by_name: ClassVar[bool] = False  # whether a search takes it only where it is named
    config_type: type[C]

    def grids(self) -> Iterable[Grid[C]]:
        """Yield every configuration before any rule, each once, in a fixed order; none where these are in tables."""
        return ()

    def configurations(self) -> Iterator[C]:
        """Yield every configuration before any rule, each once, in a fixed order."""
        return chain.from_iterable(self.every_grid)

    @abstractmethod
    def resources(self, config: C, problem: Problem) -> Resources:
        """Return the resources of a block of this configuration, estimated before compiling."""

    @abstractmethod
    def launch(self, config: C, problem: Problem) -> Launch:
        """Return how the kernel is started; the same for every shape of the problem's dtype."""

    @abstractmethod
    def traffic(self, config: C, problem: Problem) -> Traffic:
        """Return the bytes that the design moves for this problem at beta = 0, re-reads included."""

    @abstractmethod
    def periods(self, config: C, problem: Problem) -> Periods:
        """The longest of the lengths by which the kernel divides each extent: verification tries every remainder."""

    def share_step(self, config: C, problem: Problem) -> int:
        """Products of which every part of k but the last has a whole number."""
        return self.periods(config, problem).k

    def deepest(self, config: C) -> int:
        """Products of a sum after which C is written, to be read and written again for the next ones; 0: all."""
        return 0

    def division(self, config: C, problem: Problem, resident: int) -> Division:
        """Into what the kernel divides its work, on a device whose multiprocessors hold so many of its blocks."""
        launch = self.launch(config, problem)
        tiles = int(config.tunables.get("row_tiles", 1)) if "row_tiles" in config.launch_tunables() else 1
        step = self.share_step(config, problem)
        return Division(
            resident=resident,
            block_m=launch.rows_per_block // tiles,
            block_n=launch.columns_per_block,
            step=step,
            deepest=self.deepest(config),
            odd_lines=self.odd_lines,
            depth=step if step <= MOST_DEPTH else 1,
            vectors_of_c=self.vectors_of_c,
        )

    def has(self, config: C, problem: Problem) -> bool:
        """Return whether the configuration is in the problem's space before any rule, or a variant of one that is."""
        return any(grid.holds(config) for grid in self.every_grid) and (
            config == config.early or config in self.later(config)
        )

    def later(self, config: C) -> tuple[C, ...]:
        """Return variants to try if the configuration is among the fastest."""
        return config.later

    @cached_property
    def every_grid(self) -> tuple[Grid[C], ...]:
        """Return the grids, which are made once."""
        return tuple(self.grids())

    def kept_in_tables(
        self, problem: Problem, limits: DeviceLimits, guidelines: Guidelines, rules: Sequence[Rule]
    ) -> tuple[Sequence[Candidate], Counter[str]] | None:
        """Return the candidates that every rule keeps, as tables, and how many each rule is the first to drop.

        This is for spaces too large for one object a configuration. Return None if the space is small.
        """
        return None

    def guidelines(self, problem: Problem, limits: DeviceLimits) -> Guidelines:
        """Return the default guidelines."""
        return Guidelines()

    def occupancy(self, resources: Resources, limits: DeviceLimits) -> Occupancy:
        """Return the occupancy of a multiprocessor by estimated resources."""
        return occupancy(
            limits, threads=resources.threads, registers=resources.registers, smem_bytes=resources.smem_bytes
        )

    def probe_shapes(self, config: C, problem: Problem) -> tuple[tuple[int, int, int], ...]:
        """(m, n, k) of small problems at this configuration's edges: part-filled blocks, column groups, steps, tiles.

        Every template has blocks of `rows_per_block` rows; `columns`, `prefetch` and `threads` are taken from the
        tunables where the family has them.
        """
        rows, tunables = self.launch(config, problem).rows_per_block, config.tunables
        tile_of_rows = self.periods(config, problem).m
        columns, prefetch, tile = (int(tunables.get(name, 1)) for name in ("columns", "prefetch", "threads"))
        one_over = (2 * tile // prefetch + 1) * prefetch + 1  # past two tiles, one element in the last step
        one_short = (tile // prefetch + 1) * prefetch - 1  # past one tile, one element missing in the last step
        return (
            (2 * rows + 1, 1, max(prefetch - 1, 1)),
            (min(rows, 66), 2 * columns + 1, one_over),
            (max(min(rows - 1, 1021), 1), max(columns - 1, 1), max(one_short, 1)),
            (tile_of_rows, columns + 1, 2 * prefetch),  # whole, with whole steps
        )

    def supports(self, problem: Problem) -> bool:
        """Return whether the template can compute this problem at all: by default column-major products alone."""
        return problem.op == "nn" and problem.dtype_name in self.dtypes

    def proposals(self, problem: Problem, limits: DeviceLimits) -> tuple[C, ...]:
        """Return configurations to try first, by a formula, best first."""
        return ()

    @property
    def proposes(self) -> bool:
        """Whether it has a formula for its first choices; else they are what was fastest for other problems."""
        return type(self).proposals is not Family.proposals

    def context(self, config: C, problem: Problem) -> dict[str, Any]:
        """Return the variables of the template besides the tunables, such as `about`, a line of its head."""
        return {}
