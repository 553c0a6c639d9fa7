"""The published kernels: TSM2 multiplies a large matrix by a skinny one, ISM2 a tall matrix by a small one.

A thread computes one row of C at a time. TSM2 has four versions, ISM2 has two optimisations.

Source: Rivera, Chen, Xiong, Song, Tao, "ISM2: Optimizing Irregular-Shaped Matrix-Matrix Multiplication on
GPUs", sections 3.2 to 3.6 (Algorithms 1 to 4), 4.2 (the versions V0 to V3) and 5.2 (Algorithms 6 and 7).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypeVar

from tsm2_tune.generator.config import KernelConfig, Periods, Resources
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.families.family import Family
from tsm2_tune.generator.paper_model import OVERHEAD_REGISTERS, choose
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.grid import Grid
from tsm2_tune.generator.space.rules import covering_rule, strides_fill_device
from tsm2_tune.generator.space.tunables import Tunable
from tsm2_tune.generator.tiles import covering
from tsm2_tune.generator.tiling import VECTOR_BYTES, BlockPlan

THREADS = (32, 64, 128, 256, 512, 1024)
COLUMNS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
PREFETCH = (1, 2, 4, 6, 8, 12, 16, 24, 32)
SMALL_M, SMALL_K = 2**18, 16  # m and k up to which launching the kernel takes longer than reading A

VERSIONS = {
    "v0": "Algorithm 1, inner product: a row of A is read again for every column of C",
    "v1": "Algorithm 2, outer product: an element of A is loaded once for a group of columns",
    "v2": "Algorithm 3: the outer product, with tiles of B staged in shared memory",
    "v3": "Algorithm 4: tiles of B staged in shared memory, A and B prefetched into registers",
}
OPTIMISATIONS = {
    1: "Algorithm 6: TSM2's V3 repeated over tiles of rows",
    2: "Algorithm 7: rows stride past each staged tile of B, C prefetched",
}

Threads = Annotated[
    int, Tunable("threads of a block, one row of A each; also the rows of B staged at a time", symbol="t1")
]
Columns = Annotated[int, Tunable("columns of C that one thread accumulates in registers", symbol="t2")]


@dataclass(frozen=True, slots=True)
class Tsm2Config(KernelConfig):
    family: ClassVar[str] = "tsm2"

    version: Annotated[str, Tunable("published version: v0, v1, v2 or v3", symbol="V")]
    threads: Threads
    columns: Columns
    prefetch: Annotated[int, Tunable("elements of A that one thread loads at a time", symbol="t3")]


@dataclass(frozen=True, slots=True)
class Ism2Config(KernelConfig):
    family: ClassVar[str] = "ism2"

    optimisation: Annotated[
        int, Tunable("1: outer loop over rows; 2: outer loop over tiles of B, C prefetched", is_constant=False)
    ]
    threads: Threads
    columns: Columns
    prefetch: Annotated[int, Tunable("elements of A that one thread loads ahead", symbol="t3")]
    row_tiles: Annotated[int, Tunable("rows of C that each thread computes", symbol="tcf", default=1, is_launch=True)]


P = TypeVar("P", bound=Tsm2Config | Ism2Config)

SHAPE_RULES = (
    covering_rule("columns", "n", COLUMNS),
    covering_rule("prefetch", "k", PREFETCH),
    covering_rule("threads", "m", THREADS),
)


class Published(Family[P]):
    ops = ("nn",)

    @abstractmethod
    def elements(self, config: P) -> int:
        """Return the number of elements of A, B and C that a thread has in registers."""

    def is_staged(self, config: P) -> bool:
        """Return whether tiles of B are in shared memory."""
        return True

    def block_plan(self, config: P, problem: Problem) -> BlockPlan:
        """Return the block plan: a block computes all columns of its rows, one tile after another.

        A tile of B has `threads` rows, rounded down to whole `prefetch`.
        """
        staged = config.threads // config.prefetch * config.prefetch * config.columns if self.is_staged(config) else 0
        resources = Resources(
            threads=config.threads,
            registers=self.elements(config) * problem.dtype.registers + OVERHEAD_REGISTERS,
            smem_bytes=staged * problem.dtype.element_bytes,
            bytes_in_flight=config.prefetch * problem.dtype.element_bytes,
            reuse=config.columns,
        )
        return BlockPlan(
            resources,
            Periods(config.threads, config.columns, max(config.threads, config.prefetch)),
            launch_fields={"columns_per_block": 0},
            tiling_fields={"k_padding": config.prefetch, "c_vector_bytes": VECTOR_BYTES},
        )


class Tsm2(Published[Tsm2Config]):
    summary = "large A times skinny B, one row of A per thread; published versions V0 to V3"
    template = "tsm2.cu.jinja"
    rules = SHAPE_RULES
    config_type = Tsm2Config

    def grids(self) -> Iterable[Grid[Tsm2Config]]:
        return [
            Grid(Tsm2Config, {"version": ("v0",), "threads": THREADS, "columns": (1,), "prefetch": (1,)}),
            Grid(Tsm2Config, {"version": ("v1",), "threads": THREADS, "columns": COLUMNS, "prefetch": (1,)}),
            Grid(Tsm2Config, {"version": ("v2", "v3"), "threads": THREADS, "columns": COLUMNS, "prefetch": PREFETCH}),
        ]

    def elements(self, config: Tsm2Config) -> int:
        """Return the elements in registers: V3 has the R_thread of section 3.6.2, other versions have fewer."""
        return {
            "v0": 3,
            "v1": 2 * config.columns + 1,
            "v2": 2 * config.columns + config.prefetch,
            "v3": 3 * config.columns + 2 * config.prefetch,
        }[config.version]

    def is_staged(self, config: Tsm2Config) -> bool:
        return config.version in ("v2", "v3")

    def proposals(self, problem: Problem, limits: DeviceLimits) -> tuple[Tsm2Config, ...]:
        """Return the configuration with the t1, t2 and t3 of the paper's model.

        For small m and k, first return the configurations that were fastest on an H200: V2, with a whole row of A
        loaded at once. The paper also profiles other values of t1 (section 3.6.3). The search tries those later.
        """
        choice = choose(problem, limits)
        threads = min(choice.t1, covering(THREADS, problem.m))
        prefetch = nearest(PREFETCH, min(choice.t3, covering(PREFETCH, problem.k)))
        config = Tsm2Config("v3", threads, nearest(COLUMNS, choice.t2), prefetch)
        few: tuple[Tsm2Config, ...] = ()
        if problem.m <= SMALL_M and problem.k <= SMALL_K:
            columns, prefetch = nearest(COLUMNS, problem.n), nearest(PREFETCH, problem.k)
            few = (Tsm2Config("v2", 128, columns, prefetch), Tsm2Config("v2", 64, columns, prefetch))
        return few + ((config,) if config.threads in THREADS else ())

    def context(self, config: Tsm2Config, problem: Problem) -> dict[str, Any]:
        return super().context(config, problem) | {"about": VERSIONS[config.version]}


class Ism2(Published[Ism2Config]):
    summary = "tall and skinny A times small B, m/tcf threads stride over the rows; optimisations 1 and 2"
    template = "ism2.cu.jinja"
    beside_resources = ("row_tiles",)
    rules = (*SHAPE_RULES, strides_fill_device("threads"))
    config_type = Ism2Config
    axes: ClassVar = {
        "optimisation": tuple(OPTIMISATIONS),
        "threads": THREADS,
        "columns": COLUMNS,
        "prefetch": PREFETCH,
        "row_tiles": (1, 2, 4, 8, 16, 32, 64),  # [tcf]; past 64 the paper saw the speed decline (section 5.2)
    }

    def elements(self, config: Ism2Config) -> int:
        # Optimisation 1 has the registers of TSM2's V3. Optimisation 2 also has C of this row and of the next row.
        return (3 if config.optimisation == 1 else 5) * config.columns + 2 * config.prefetch

    def context(self, config: Ism2Config, problem: Problem) -> dict[str, Any]:
        return super().context(config, problem) | {"about": OPTIMISATIONS[config.optimisation]}


def nearest(options: tuple[int, ...], value: int) -> int:
    """Return the option nearest to `value`, the larger of two equally near ones."""
    return min(options, key=lambda option: (abs(option - value), -option))


TSM2 = Tsm2()
FAMILIES = (TSM2, Ism2())
