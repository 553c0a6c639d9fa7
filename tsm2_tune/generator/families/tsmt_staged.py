"""TSMT through shared memory: the transpose of a tall and skinny matrix times another, both operands staged.

In TSMT the threads of a tile each load what they need, and the larger C is, the more of them load the same: the load
unit is the limit then. Here every element comes from memory once, asynchronously, into a ring of chunks in shared
memory, as it lies in memory, and the threads read it there.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar, TypeVar

from tsm2_tune.generator.config import GROUP_SPLITS, KernelConfig, Launch, Resources, Traffic
from tsm2_tune.generator.families.family import Family, Tunable
from tsm2_tune.generator.limits import DeviceLimits
from tsm2_tune.generator.model import OVERHEAD_REGISTERS
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.rules import Candidate, Rule
from tsm2_tune.generator.splitting import (
    REGISTERS_REACHABLE,
    WIDE_SPLIT_RULES,
    WIDE_SPLITS,
    has_f64_tensor_cores,
    tunable,
)
from tsm2_tune.generator.tiles import LARGEST_THIN, covering, tile_rules, tile_traffic

TILE = (8, 16, 32, 64)  # rows and columns of C, of a block
THREAD_TILES = ((8, 8), (8, 16))  # rows and columns of C, of a thread, as far as the tile has them
STEPS = (1, 2, 4)
# Threads of a block and of a ring, the chunk and the places of the ring, and what is on the way there.
RINGS = (
    (128, 128, 128, 2, 0), (128, 128, 64, 2, 0), (128, 128, 32, 2, 0), (128, 32, 16, 2, 0),
    (128, 128, 128, 4, 1), (128, 128, 32, 2, 1), (128, 128, 32, 3, 1), (128, 32, 16, 2, 1), (128, 32, 16, 3, 1),
    (128, 128, 32, 3, 2), (128, 128, 64, 4, 2),
)  # fmt: skip
MIN_BLOCKS = (1, 3)
TILE_ELEMENTS = (16 * 16, 32 * 32, 64 * 64)
# What won on an H200, and its neighbours, for tiles of at most as many elements, where an operand lies along k and
# where none does: the ring, blocks on a multiprocessor, as many as the bound or 1, columns of a thread, and step.
WINNERS: dict[tuple[int, bool], tuple[tuple[int, int, int, int, int, int, int, int, int], ...]] = {
    (16 * 16, True): (
        (128, 128, 128, 2, 0, 3, 1, 8, 2), (128, 128, 128, 2, 0, 3, 3, 8, 2), (128, 128, 128, 2, 0, 3, 1, 8, 4),
        (128, 128, 64, 2, 0, 4, 1, 8, 2), (128, 128, 128, 2, 0, 2, 1, 8, 2),
    ),
    (16 * 16, False): (
        (128, 128, 128, 2, 0, 3, 1, 8, 1), (128, 128, 128, 4, 1, 1, 1, 8, 1), (128, 128, 128, 2, 0, 3, 3, 8, 1),
        (128, 128, 64, 2, 0, 4, 1, 8, 1), (128, 128, 128, 2, 0, 2, 1, 8, 1),
    ),
    (32 * 32, True): (
        (128, 128, 64, 2, 0, 3, 1, 8, 4), (128, 128, 64, 2, 0, 3, 3, 8, 2), (128, 128, 64, 2, 0, 3, 1, 8, 2),
        (128, 128, 64, 4, 2, 3, 3, 8, 4), (128, 128, 64, 2, 0, 2, 1, 8, 4),
    ),
    (32 * 32, False): (
        (128, 128, 64, 2, 0, 3, 1, 8, 1), (128, 128, 64, 2, 0, 3, 3, 8, 1), (128, 128, 64, 2, 0, 2, 1, 8, 1),
        (128, 32, 16, 3, 1, 2, 1, 8, 1), (128, 128, 32, 2, 0, 4, 1, 8, 1),
    ),
    (64 * 64, True): (
        (128, 128, 32, 2, 0, 3, 1, 8, 4), (128, 128, 32, 3, 2, 3, 3, 8, 4), (128, 128, 32, 3, 1, 3, 3, 8, 4),
        (128, 128, 32, 2, 1, 3, 3, 8, 4), (128, 128, 32, 2, 0, 2, 1, 16, 2), (128, 128, 32, 2, 1, 2, 1, 16, 4),
    ),
    (64 * 64, False): (
        (128, 32, 16, 2, 1, 2, 1, 16, 2), (128, 32, 16, 2, 0, 2, 1, 16, 1), (128, 32, 16, 3, 1, 2, 1, 16, 2),
        (128, 32, 16, 2, 1, 2, 1, 16, 1), (128, 32, 16, 2, 0, 2, 1, 16, 2),
    ),
}  # fmt: skip
WARP_THREADS, VECTOR_BYTES = 32, 16
PHASE_BYTES = 128  # of shared memory, that a warp's threads read at the same time


@dataclass(frozen=True, slots=True, order=True)
class StagedConfig(KernelConfig):
    """The choices of every staged family."""

    letters: ClassVar[dict[str, str]] = {
        "threads": "t",
        "sharers": "w",
        "tile_rows": "m",
        "tile_columns": "n",
        "chunk": "d",
        "stages": "s",
        "through": "l",
        "splits": "k",
        "min_blocks": "b",
    }

    threads: int  # per block
    sharers: int  # threads that share a ring in shared memory: a warp's or the block's
    tile_rows: int  # of C, of a block
    tile_columns: int  # of C, of a block
    chunk: int  # products along k in one place of the ring
    stages: int  # places of the ring
    through: int  # what is on the way to shared memory: 0 registers, 1 the L1, 2 the L2 alone
    splits: int  # of k
    min_blocks: int  # on a multiprocessor, which bounds the registers; 1: as many as the compiler wants


STAGED_TUNABLES = (
    Tunable("threads", "", "threads of a block"),
    Tunable("sharers", "", "threads that share a ring in shared memory: a warp's or the block's"),
    Tunable("tile_rows", "", "rows of C that one block computes"),
    Tunable("tile_columns", "", "columns of C that one block computes"),
    Tunable("chunk", "", "products along k in one place of the ring"),
    Tunable("stages", "", "places of the ring, on their way or arrived"),
    Tunable("through", "", "what is on the way to shared memory: 0 registers, 1 the L1, 2 the L2 alone"),
    Tunable("splits", "", "blocks among which k is divided"),
    Tunable("min_blocks", "", "blocks that a multiprocessor must hold, which bounds the registers"),
)


def _chunks_for_all(candidate: Candidate) -> bool:
    rings = tunable(candidate, "splits") * (tunable(candidate, "threads") // tunable(candidate, "sharers"))
    smallest = tunable(candidate, "splits") == WIDE_SPLITS[0]
    return smallest or candidate.problem.k >= rings * tunable(candidate, "chunk")


def staged_rules(tile: tuple[int, ...]) -> tuple[Rule, ...]:
    """The rules of every staged family, for its options of a tile's rows and columns."""
    return (
        *tile_rules(tile),
        Rule("chunks-for-all", "shape", "every ring should have a whole chunk of k", _chunks_for_all),
        *WIDE_SPLIT_RULES,
        REGISTERS_REACHABLE,
    )


C = TypeVar("C", bound=StagedConfig)


class StagedFamily(Family[C]):
    """What the staged families have in common."""

    @abstractmethod
    def team(self, config: C) -> int:
        """Threads that share a tile of C."""

    @abstractmethod
    def pitches(self, config: C, problem: Problem) -> tuple[int, int]:
        """Elements from one line of A, and of B, to the next in shared memory."""

    @abstractmethod
    def registers(self, config: C) -> int:
        """Elements that a thread has in registers."""

    def resources(self, config: C, problem: Problem) -> Resources:
        along_a, along_b, _ = problem.contiguous
        a_pitch, b_pitch = self.pitches(config, problem)
        a = a_pitch * (config.tile_rows if along_a == "k" else config.chunk)
        b = b_pitch * (config.tile_columns if along_b == "k" else config.chunk)
        rings = config.threads // config.sharers * config.stages * (a + b)
        teams = config.threads // max(self.team(config), WARP_THREADS)
        sums = teams * config.tile_rows * config.tile_columns
        on_their_way = config.tile_rows * config.chunk * (config.stages - 1) // config.sharers
        return Resources(
            threads=config.threads,
            registers=self.registers(config) * problem.dtype.registers + OVERHEAD_REGISTERS,
            smem_bytes=max(rings, sums) * problem.dtype.element_bytes,
            bytes_in_flight=on_their_way * problem.dtype.element_bytes,
            reuse=config.tile_columns,
        )

    def launch(self, config: C, problem: Problem) -> Launch:
        return Launch(
            threads=config.threads,
            rows_per_block=config.tile_rows,
            columns_per_block=config.tile_columns,
            smem_bytes=self.resources(config, problem).smem_bytes,
            splits=config.splits,
        )

    def traffic(self, config: C, problem: Problem) -> Traffic:
        return tile_traffic(problem, tile_rows=config.tile_rows, tile_columns=config.tile_columns)

    def supports(self, problem: Problem) -> bool:
        return problem.dtype_name in ("f32", "f64") and max(problem.m, problem.n) <= self.largest(problem)

    def largest(self, problem: Problem) -> int:
        """Rows and columns of the largest C that is worth it."""
        return LARGEST_THIN

    def probe_shapes(self, config: C, problem: Problem) -> tuple[tuple[int, int, int], ...]:
        """Part-filled and several tiles of C; k of no whole chunk, of a part of one, and several for each ring.

        The first fills the tile and has a rest of k; the fourth, whose k is 1 more than a multiple of 4, has aligned
        addresses where the leading dimensions of the general call are not, or the other way round; so has the fifth
        in a full tile; the last have whole chunks that a tile must not copy which is full one way only.
        """
        rows, columns, chunk = config.tile_rows, config.tile_columns, config.chunk
        rings = config.splits * (config.threads // config.sharers)
        return (
            (rows, columns, chunk * (rings * config.stages + 3) + 4),
            (rows + 1, max(columns - 1, 1), 2 * chunk + 3),
            (max(rows - 1, 1), columns + 1, max(chunk // 4 - 1, 1)),
            (rows + 2, columns + 4, 2 * chunk + 1),
            (rows + 1, columns + 1, 2 * chunk),
            (max(rows - 2, 1), columns, chunk),
            (rows, max(columns - 4, 1), chunk),
        )

    def context(self, config: C, problem: Problem) -> dict[str, Any]:
        along_a, along_b, _ = problem.contiguous
        a_pitch, b_pitch = self.pitches(config, problem)
        return {
            "about": "both operands staged in shared memory, k over every thread",
            "kernel": self.name,
            "storage": problem.storage,
            "a_along_k": along_a == "k",
            "b_along_k": along_b == "k",
            "c_along_n": problem.row_major_c,
            "a_pitch": a_pitch,
            "b_pitch": b_pitch,
            "symmetric": (along_a == "k") == (along_b == "k") and config.tile_rows == config.tile_columns,
            "groups": self.launch(config, problem).groups,
            "group_splits": GROUP_SPLITS,
        }


@dataclass(frozen=True, slots=True, order=True)
class TsmtStagedConfig(StagedConfig):
    """Every choice that the template needs."""

    family: ClassVar[str] = "tsmt_staged"
    letters: ClassVar[dict[str, str]] = {**StagedConfig.letters, "rows": "r", "columns": "c", "step": "p"}

    rows: int  # of C that one thread accumulates in registers
    columns: int  # of C that one thread accumulates in registers
    step: int  # products along k that one thread multiplies at a time


def _reads_fit_vectors(candidate: Candidate) -> bool:
    along_k = "k" in candidate.problem.contiguous[:2]
    return not along_k or tunable(candidate, "step") * candidate.problem.dtype.element_bytes <= VECTOR_BYTES


class TsmtStaged(StagedFamily[TsmtStagedConfig]):
    name = "tsmt_staged"
    summary = "transposed tall and skinny times tall and skinny: both staged in shared memory, k over every thread"
    template = "tsmt_staged.cu.jinja"
    tunables = (
        *STAGED_TUNABLES,
        Tunable("rows", "", "rows of C that one thread accumulates in registers"),
        Tunable("columns", "", "columns of C that one thread accumulates in registers"),
        Tunable("step", "", "products along k that one thread multiplies at a time"),
    )
    rules = (
        *staged_rules(TILE),
        Rule(
            "reads-fit-vectors",
            "shape",
            "a thread reads 16 bytes of shared memory at a time: more along k would meet banks twice",
            _reads_fit_vectors,
        ),
    )
    config_type = TsmtStagedConfig

    def configurations(self) -> Iterator[TsmtStagedConfig]:
        tiles = sorted(
            {
                (tile_rows, tile_columns, min(tile_rows, rows), min(tile_columns, columns))
                for tile_rows, tile_columns, (rows, columns) in product(TILE, TILE, THREAD_TILES)
            }
        )
        for tile, ring, splits, min_blocks, step in product(tiles, RINGS, WIDE_SPLITS, MIN_BLOCKS, STEPS):
            tile_rows, tile_columns, rows, columns = tile
            threads, sharers, chunk, stages, through = ring
            config = TsmtStagedConfig(
                threads,
                sharers,
                tile_rows,
                tile_columns,
                chunk,
                stages,
                through,
                splits,
                min_blocks,
                rows,
                columns,
                step,
            )
            if config.chunk * self.team(config) >= sharers * step and self.team(config) <= sharers:
                yield config

    def team(self, config: TsmtStagedConfig) -> int:
        return (config.tile_rows // config.rows) * (config.tile_columns // config.columns)

    def registers(self, config: TsmtStagedConfig) -> int:
        return config.rows * config.columns + (config.rows + config.columns) * config.step

    def pitches(self, config: TsmtStagedConfig, problem: Problem) -> tuple[int, int]:
        """Lines along k are so far apart that those which threads read at the same time lie in banks side by side.

        Two neighbours of a team count as one, since they read the same.
        """
        bytes_of_read = config.step * problem.dtype.element_bytes
        together = min(2 * PHASE_BYTES // bytes_of_read, WARP_THREADS)
        words = max(VECTOR_BYTES, together // self.team(config) * bytes_of_read) % PHASE_BYTES
        along_k = config.chunk + words // problem.dtype.element_bytes
        along_a, along_b, _ = problem.contiguous
        return (
            along_k if along_a == "k" else config.tile_rows,
            along_k if along_b == "k" else config.tile_columns,
        )

    def preferred(self, problem: Problem, limits: DeviceLimits) -> tuple[TsmtStagedConfig, ...]:
        """Every product of C in one tile; what won on an H200 for a C as large, and operands lying so, first.

        None where TSMT or the tensor cores do better.
        """
        if max(problem.m, problem.n) <= 8 or (problem.dtype_name == "f64" and has_f64_tensor_cores(limits)):
            return ()
        tile_rows = covering(TILE, problem.m)
        tile_columns = covering(TILE, problem.n)
        most = VECTOR_BYTES // problem.dtype.element_bytes  # products along k in one read
        return tuple(
            TsmtStagedConfig(
                threads,
                sharers,
                tile_rows,
                tile_columns,
                chunk,
                stages,
                through,
                splits=limits.sms * blocks,
                min_blocks=min_blocks,
                rows=min(tile_rows, 8),
                columns=min(tile_columns, columns),
                step=min(step, most),
            )
            for threads, sharers, chunk, stages, through, blocks, min_blocks, columns, step in WINNERS[
                next(elements for elements in TILE_ELEMENTS if elements >= tile_rows * tile_columns),
                "k" in problem.contiguous[:2],
            ]
        )


FAMILY = TsmtStaged()
