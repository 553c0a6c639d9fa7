"""TSM2: a large matrix times a skinny one, one row a thread, in the four published versions.

Source: Rivera, Chen, Xiong, Song, Tao, "ISM2: Optimizing Irregular-Shaped Matrix-Matrix Multiplication on
GPUs", sections 3.2 to 3.6 (Algorithms 1 to 4) and 4.2 (the versions V0 to V3).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Annotated, Any, ClassVar

from tsm2_tune.generator.config import KernelConfig, Launch, Periods, Resources, Traffic
from tsm2_tune.generator.families.family import Family
from tsm2_tune.generator.limits import DeviceLimits
from tsm2_tune.generator.model import OVERHEAD_REGISTERS, choose
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.rules import columns_within_n, covering_rule, prefetch_within_k
from tsm2_tune.generator.tiles import covering
from tsm2_tune.generator.tunables import Tunable
from tsm2_tune.runtime.expecting import Division

THREADS = (32, 64, 128, 256, 512, 1024)
COLUMNS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
PREFETCH = (1, 2, 4, 6, 8, 12, 16, 24, 32)
SMALL_M, SMALL_K = 2**18, 16  # up to which starting the kernel takes longer than reading A

VERSIONS = {
    "v0": "Algorithm 1, inner product: a row of A is read again for every column of C",
    "v1": "Algorithm 2, outer product: an element of A is loaded once for a group of columns",
    "v2": "Algorithm 3: the outer product, with tiles of B staged in shared memory",
    "v3": "Algorithm 4: tiles of B staged in shared memory, A and B prefetched into registers",
}


@dataclass(frozen=True, slots=True, order=True)
class Tsm2Config(KernelConfig):
    """Every choice that the TSM2 template needs. The paper's symbol is in brackets."""

    family: ClassVar[str] = "tsm2"

    version: Annotated[str, Tunable("published version: v0, v1, v2 or v3", symbol="V", letter="")]
    threads: Annotated[
        int, Tunable("threads of a block; also the rows of B staged at a time", symbol="t1", letter="t")
    ]
    columns: Annotated[int, Tunable("columns of C that one thread accumulates in registers", symbol="t2", letter="c")]
    prefetch: Annotated[int, Tunable("elements of A that one thread loads at a time", symbol="t3", letter="p")]


SHAPE_RULES = (
    columns_within_n(COLUMNS),
    prefetch_within_k(PREFETCH),
    covering_rule(
        "threads-within-m",
        "a block larger than needed for m rows has threads without a row",
        tunable="threads",
        options=THREADS,
        extent=lambda problem: problem.m,
    ),
)


def staged_bytes(*, threads: int, columns: int, prefetch: int, problem: Problem) -> int:
    """Shared memory of one tile of B: the whole steps of `prefetch` rows that `threads` rows hold."""
    return threads // prefetch * prefetch * columns * problem.dtype.element_bytes


class Tsm2(Family[Tsm2Config]):
    name = "tsm2"
    summary = "large A times skinny B, one row of A a thread; published versions V0 to V3"
    template = "tsm2.cu.jinja"
    vectors_of_c = True
    rules = SHAPE_RULES
    config_type = Tsm2Config

    def configurations(self) -> Iterator[Tsm2Config]:
        for threads in THREADS:
            yield Tsm2Config("v0", threads, columns=1, prefetch=1)
        for threads, columns in product(THREADS, COLUMNS):
            yield Tsm2Config("v1", threads, columns, prefetch=1)
        for version, threads, columns, prefetch in product(("v2", "v3"), THREADS, COLUMNS, PREFETCH):
            yield Tsm2Config(version, threads, columns, prefetch)

    def resources(self, config: Tsm2Config, problem: Problem) -> Resources:
        """V3's registers are R_thread of section 3.6.2; the other versions hold less of A and B at a time."""
        elements = {
            "v0": 3,
            "v1": 2 * config.columns + 1,
            "v2": 2 * config.columns + config.prefetch,
            "v3": 3 * config.columns + 2 * config.prefetch,
        }[config.version]
        staged = config.version in ("v2", "v3")
        return Resources(
            threads=config.threads,
            registers=elements * problem.dtype.registers + OVERHEAD_REGISTERS,
            smem_bytes=staged_bytes(
                threads=config.threads, columns=config.columns, prefetch=config.prefetch, problem=problem
            )
            if staged
            else 0,
            bytes_in_flight=config.prefetch * problem.dtype.element_bytes,
            reuse=config.columns,
        )

    def launch(self, config: Tsm2Config, problem: Problem) -> Launch:
        return Launch(
            threads=config.threads,
            rows_per_block=config.threads,
            smem_bytes=self.resources(config, problem).smem_bytes,
        )

    def periods(self, config: Tsm2Config, problem: Problem) -> Periods:
        return Periods(config.threads, config.columns, max(config.threads, config.prefetch))

    def division(self, config: Tsm2Config, problem: Problem, resident: int) -> Division:
        """A block goes over its rows of A once for each group of columns."""
        found = super().division(config, problem, resident)
        return replace(found, tile_columns=config.columns, depth=config.prefetch)

    def traffic(self, config: Tsm2Config, problem: Problem) -> Traffic:
        passes = -(-problem.n // config.columns)  # over A: one for each group of columns
        elements = problem.m * problem.k * passes + problem.k * problem.n
        return Traffic(elements * problem.dtype.element_bytes, problem.written_bytes)

    def proposals(self, problem: Problem, limits: DeviceLimits) -> tuple[Tsm2Config, ...]:
        """The model's t1, t2 and t3. The other t1 that the paper profiles (section 3.6.3) are left to the search.

        Before it, where all is small, what won on an H200: V2, all of a row at once.
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
        return {"about": VERSIONS[config.version]}


def nearest(options: tuple[int, ...], value: int) -> int:
    """The option nearest to `value`, the larger of two equally near ones."""
    return min(options, key=lambda option: (abs(option - value), -option))


TSM2 = Tsm2()
FAMILIES = (TSM2,)
