"""What the families have in common that stage tiles of both operands in shared memory.

Their blocks share the chunks of k of all tiles of C evenly, whatever the shape. Where k is huge and C a tile or two,
k is split; where C has many tiles, a block has several, one after another. No multiprocessor waits for a last wave.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeVar

from tsm2_tune.generator.candidate import Candidate, tunable
from tsm2_tune.generator.config import GROUP_SPLITS, KernelConfig, Launch, Periods, Resources, Traffic
from tsm2_tune.generator.families.family import ODD_STAGED_LINES, Family
from tsm2_tune.generator.limits import DeviceLimits
from tsm2_tune.generator.model import OVERHEAD_REGISTERS
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.rules import REGISTERS_REACHABLE, Rule
from tsm2_tune.generator.split_k import WIDE_SPLIT_RULES, WIDE_SPLITS, are_whole_waves, wide_splits
from tsm2_tune.generator.tiles import LARGEST_GRAM_TILE, LARGEST_THIN, SKINNY, is_general, tile_rules, tile_traffic
from tsm2_tune.generator.tunables import Tunable

WARP_THREADS = 32
VECTOR_BYTES = 16
STATIC_SMEM_BYTES = 128  # at most: the order of work, and what blocks that meet say to their threads
MOST_OVER = 16_000  # products for a row of C: what a block may have more than an equal share is, so as to have a tile
MANY_BLOCKS = 16  # which have panels, turns and stretches in the probes that are made for them


@dataclass(frozen=True, slots=True, order=True)
class StagingConfig(KernelConfig):
    """The choices of every staged family."""

    threads: Annotated[int, Tunable("threads of a block", letter="t")]
    sharers: Annotated[
        int,
        Tunable(
            "threads that share a ring in shared memory: a warp's or the block's", word="ring_threads", letter="w"
        ),
    ]
    tile_rows: Annotated[int, Tunable("rows of C that one block computes", word="block", letter="m")]
    tile_columns: Annotated[int, Tunable("columns of C that one block computes", word="block", letter="n")]
    chunk: Annotated[int, Tunable("products along k in one place of the ring", word="block", letter="d")]
    stages: Annotated[int, Tunable("places of the ring, on their way or arrived", letter="s")]
    through: Annotated[
        int,
        Tunable(
            "what is on the way to shared memory: 0 registers, 1 the L1, 2 the L2 alone",
            word="copy",
            values=("registers", "ca", "cg"),
            letter="l",
        ),
    ]
    splits: Annotated[
        int, Tunable("blocks among which all chunks of all tiles are divided", usual=1, is_launch=True, letter="k")
    ]
    min_blocks: Annotated[
        int,
        Tunable(
            "blocks that a multiprocessor must hold, which bounds the registers;"
            " 0: the compiler may spill for one more",
            usual=1,
            letter="b",
        ),
    ]


def _chunks_for_all(candidate: Candidate) -> bool:
    rings = tunable(candidate, "splits") * (tunable(candidate, "threads") // tunable(candidate, "sharers"))
    smallest = tunable(candidate, "splits") == WIDE_SPLITS[0]
    tiles = candidate.launch.tiles(candidate.problem.m, candidate.problem.n)
    return smallest or tiles * candidate.problem.k >= rings * tunable(candidate, "chunk")


def staging_rules(
    tile: tuple[int, ...], *, columns: tuple[int, ...] = (), covered: int | None = None
) -> tuple[Rule, ...]:
    """The rules of every staged family, for its options of a tile's rows and columns, as `tile_rules` has them.

    A C that is skinny neither way may have as much smaller tiles than `covered` as make them enough for all.
    """
    most = tile[-1] if covered is None else covered

    def least(candidate: Candidate) -> int:
        problem, size = candidate.problem, most
        while is_general(problem) and size > tile[0] and tiles_of(problem, size) < candidate.limits.sms:
            size //= 2
        return size

    return (
        *tile_rules(tile, columns=columns, covered=least),
        Rule("chunks-for-all", "shape", "every ring should have a whole chunk of k", _chunks_for_all),
        *WIDE_SPLIT_RULES,
        REGISTERS_REACHABLE,
    )


def tiles_of(problem: Problem, size: int) -> int:
    """Squares of this size that cover C."""
    return -(-problem.m // size) * -(-problem.n // size)


def _blocks_for_all(candidate: Candidate) -> bool:
    problem = candidate.problem
    if not is_general(problem):
        return True
    chunks = candidate.launch.tiles(problem.m, problem.n) * problem.k // tunable(candidate, "chunk")
    return tunable(candidate, "splits") >= min(wide_splits(candidate.limits, 1), chunks)


# Of the families that serve a C which is skinny neither way.
BLOCKS_FOR_ALL = Rule(
    "blocks-for-all", "shape", "many tiles of C have work for every multiprocessor", _blocks_for_all
)
WIDE_TILES_FOR_WIDE_RESULTS = Rule(
    "wide-tiles-for-wide-results",
    "shape",
    "a C that is skinny, or a small result of a long sum, has no columns for them",
    lambda c: tunable(c, "tile_columns") <= SKINNY or is_general(c.problem),
)

C = TypeVar("C", bound=StagingConfig)


def filling(configs: Iterable[C], problem: Problem, limits: DeviceLimits) -> tuple[C, ...]:
    """The configurations with as many blocks, or as many fewer, as k has work for.

    However little a block multiplies, it leaves a whole tile of sums to be added up. So more than one block on a
    multiprocessor are worth it where all have chunks to fill their rings, and one where it has a chunk.
    """

    def fewer(config: C) -> C:
        tiles = -(-problem.m // config.tile_rows) * -(-problem.n // config.tile_columns)
        chunks = problem.k * tiles // (config.chunk * (config.threads // config.sharers))
        worth = min(chunks, max(chunks // max(config.stages - 1, 2), limits.sms), config.splits)
        options = (splits for splits in WIDE_SPLITS if splits <= worth and are_whole_waves(splits, limits))
        return replace(config, splits=max(options, default=WIDE_SPLITS[0]))

    return tuple(dict.fromkeys(map(fewer, configs)))


class StagingFamily(Family[C]):
    """What the staged families have in common."""

    odd_lines = ODD_STAGED_LINES

    @abstractmethod
    def team(self, config: C) -> int:
        """Threads that share a tile of C."""

    @abstractmethod
    def pitches(self, config: C, problem: Problem) -> tuple[int, int]:
        """Elements from one line of A, and of B, to the next in shared memory."""

    @abstractmethod
    def registers(self, config: C) -> int:
        """Elements that a thread has in registers."""

    def smem_elements(self, config: C, problem: Problem) -> int:
        """Elements of the rings, or of the sums that take their place."""
        along_a, along_b, _ = problem.contiguous
        a_pitch, b_pitch = self.pitches(config, problem)
        a = a_pitch * (config.tile_rows if along_a == "k" else config.chunk)
        b = b_pitch * (config.tile_columns if along_b == "k" else config.chunk)
        rings = config.threads // config.sharers * config.stages * (a + b)
        teams = config.threads // max(self.team(config), WARP_THREADS)
        return max(rings, teams * config.tile_rows * config.tile_columns)

    def resources(self, config: C, problem: Problem) -> Resources:
        on_their_way = config.tile_rows * config.chunk * (config.stages - 1) // config.sharers
        lines = config.tile_rows + config.tile_columns
        pieces = lines * config.chunk // config.sharers if config.through == 0 else 0  # on their way in registers
        return Resources(
            threads=config.threads,
            registers=(self.registers(config) + pieces) * problem.dtype.registers + OVERHEAD_REGISTERS,
            smem_bytes=self._dynamic_smem_bytes(config, problem) + STATIC_SMEM_BYTES,
            bytes_in_flight=on_their_way * problem.dtype.element_bytes,
            reuse=config.tile_columns,
        )

    def _dynamic_smem_bytes(self, config: C, problem: Problem) -> int:
        elements = self.smem_elements(config, problem) * problem.dtype.element_bytes
        return elements + config.threads * VECTOR_BYTES  # of slices that are added up

    def launch(self, config: C, problem: Problem) -> Launch:
        return Launch(
            threads=config.threads,
            rows_per_block=config.tile_rows,
            columns_per_block=config.tile_columns,
            smem_bytes=self._dynamic_smem_bytes(config, problem),
            splits=config.splits,
            persistent=True,
        )

    def sums_in_registers(self, config: C) -> bool:
        """Whether a thread's sums are those of C, and none of its neighbours' must be added."""
        return False

    def has_whole_tiles(self, config: C, problem: Problem) -> bool:
        """Whether each block has a tile of C with all of k, but for a few that have none: as `work_of` decides."""
        tiles = self.launch(config, problem).tiles(problem.m, problem.n)
        chunks = -(-problem.k // config.chunk)
        share = -(-tiles * chunks // config.splits)
        few_idle = config.splits - config.splits // 8 <= tiles <= config.splits
        return few_idle and (chunks - share) * config.chunk <= self._most_over(config, problem)

    def _most_over(self, config: C, problem: Problem) -> int:
        """The same, of k. A complex product is at least three or four real ones."""
        return MOST_OVER // (config.tile_columns * problem.dtype.parts**2)

    def periods(self, config: C, problem: Problem) -> Periods:
        return Periods(config.tile_rows, config.tile_columns, config.chunk)

    def traffic(self, config: C, problem: Problem) -> Traffic:
        return tile_traffic(problem, tile_rows=config.tile_rows, tile_columns=config.tile_columns)

    def supports(self, problem: Problem) -> bool:
        if problem.is_gram and problem.m <= LARGEST_GRAM_TILE:  # half of it is less work
            return False
        return problem.dtype_name in ("f32", "f64") and max(problem.m, problem.n) <= self.largest(problem)

    def largest(self, problem: Problem) -> int:
        """Rows and columns of the largest C that is worth it."""
        return LARGEST_THIN

    def probe_shapes(self, config: C, problem: Problem) -> tuple[tuple[int, int, int], ...]:
        """Part-filled and several tiles of C; k of no whole chunk, of a part of one, and several for each ring.

        The first fills the tile, has a rest of k, and a shorter run for the last block; the fourth, whose k is 1 more
        than a multiple of 4, has aligned addresses where the leading dimensions of the general call are not, or the
        other way round; so has the fifth in a full tile; two have whole chunks that a tile must not copy which
        is full one way only. In the last three blocks have panels and stretches, turns and stretches in several
        bands, stretches over several tiles.
        """
        rows, columns, chunk = config.tile_rows, config.tile_columns, config.chunk
        rings = config.splits * (config.threads // config.sharers)
        of_tiles = (
            (rows, columns, chunk * (rings * (config.stages + 1) - 2) + 4),
            (rows + 1, max(columns - 1, 1), 2 * chunk + 3),
            (max(rows - 1, 1), columns + 1, max(chunk // 4 - 1, 1)),
            (rows + 2, columns + 4, 2 * chunk + 1),
            (rows + 1, columns + 1, 2 * chunk),
            (max(rows - 2, 1), columns, chunk),
            (rows, max(columns - 4, 1), chunk),
        )
        of_blocks = (
            (2 * rows, columns, (config.splits // 2 + 3) * chunk),
            ((config.splits // 2 + 1) * rows - 1, columns + 1, 2 * chunk),
            ((config.splits // 2 + 1) * rows, 1, 3 * chunk),
        )
        # Few blocks divide them otherwise; and a square C would have far more tiles.
        return of_tiles if config.splits < MANY_BLOCKS or problem.is_gram else (*of_tiles, *of_blocks)

    def context(self, config: C, problem: Problem) -> dict[str, Any]:
        along_a, along_b, _ = problem.contiguous
        a_pitch, b_pitch = self.pitches(config, problem)
        return {
            "about": "both operands staged, as much work for each block",
            "kernel": self.name,
            "storage": problem.storage,
            "a_along_k": along_a == "k",
            "b_along_k": along_b == "k",
            "c_along_n": problem.row_major_c,
            "a_pitch": a_pitch,
            "b_pitch": b_pitch,
            "symmetric": ((along_a == "k") == (along_b == "k") and config.tile_rows == config.tile_columns)
            and a_pitch == b_pitch,
            "sums_in_registers": self.sums_in_registers(config),
            "smem_elements": self.smem_elements(config, problem),
            "group_splits": GROUP_SPLITS,
            "most_over": MOST_OVER // problem.dtype.parts**2,
        }
