"""What the families have in common that compute half of a Gram matrix: X^T X, each product once.

X goes through a ring in shared memory. A tile of C that is not on its diagonal is computed above its own diagonal;
the one across from it has the rest.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from tsm2_tune.generator.candidate import Candidate, tunable
from tsm2_tune.generator.config import GROUP_SPLITS, KernelConfig, Launch, Periods, Resources, Traffic
from tsm2_tune.generator.families.family import ODD_STAGED_LINES, Family
from tsm2_tune.generator.model import OVERHEAD_REGISTERS
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.rules import REGISTERS_REACHABLE, Rule, covering_rule
from tsm2_tune.generator.split_k import WIDE_SPLIT_RULES, WIDE_SPLITS
from tsm2_tune.generator.tiles import LARGEST_GRAM_TILE, LARGEST_THIN, mirrored
from tsm2_tune.generator.tunables import Tunable

TILE = (16, 32, LARGEST_GRAM_TILE)  # columns of X, of a block


@dataclass(frozen=True, slots=True, order=True)
class GramBaseConfig(KernelConfig):
    """The choices of both families."""

    threads: Annotated[int, Tunable("threads of a block", letter="t")]
    sharers: Annotated[
        int,
        Tunable(
            "threads that share a ring in shared memory: a warp's or the block's", word="ring_threads", letter="w"
        ),
    ]
    tile: Annotated[
        int, Tunable("columns of X, which are rows and columns of C, of one block", word="block", letter="m")
    ]
    chunk: Annotated[int, Tunable("products along k in one place of the ring", word="block_k", letter="d")]
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
    splits: Annotated[int, Tunable("blocks among which k is divided", usual=1, is_launch=True, letter="k")]
    min_blocks: Annotated[
        int, Tunable("blocks that a multiprocessor must hold, which bounds the registers", usual=1, letter="b")
    ]


def _chunks_for_all(candidate: Candidate) -> bool:
    rings = tunable(candidate, "splits") * (tunable(candidate, "threads") // tunable(candidate, "sharers"))
    smallest = tunable(candidate, "splits") == WIDE_SPLITS[0]
    return smallest or candidate.problem.k >= rings * tunable(candidate, "chunk")


GRAM_RULES = (
    covering_rule(
        "tile-within-m",
        "a tile of more columns than X has computes what nobody asked for",
        tunable="tile",
        options=TILE,
        extent=lambda problem: problem.m,
    ),
    Rule(
        "tile-covers-result",
        "shape",
        "tiles beside the diagonal of C are computed without care for time",
        lambda c: tunable(c, "tile") >= min(c.problem.m, TILE[-1]),
    ),
    Rule("chunks-for-all", "shape", "every ring should have a whole chunk of k", _chunks_for_all),
    *WIDE_SPLIT_RULES,
    REGISTERS_REACHABLE,
)

C = TypeVar("C", bound=GramBaseConfig)


class GramFamily(Family[C]):
    """What both families have in common."""

    odd_lines = ODD_STAGED_LINES

    @abstractmethod
    def team(self, config: C) -> int:
        """Threads that have the same k and sum all of a tile."""

    @abstractmethod
    def sums_of_team(self, config: C) -> int:
        """Elements that a team leaves in shared memory to be added up."""

    @abstractmethod
    def pitch(self, config: C, problem: Problem) -> int:
        """Elements from one run of neighbours to the next in shared memory."""

    @abstractmethod
    def registers(self, config: C) -> int:
        """Elements that a thread has in registers."""

    def resources(self, config: C, problem: Problem) -> Resources:
        place = self.pitch(config, problem) * (config.tile if problem.contiguous[0] == "k" else config.chunk)
        rings = config.threads // config.sharers * config.stages * place
        sums = config.threads // self.team(config) * self.sums_of_team(config)
        on_their_way = config.tile * config.chunk * (config.stages - 1) // config.sharers
        return Resources(
            threads=config.threads,
            registers=self.registers(config) * problem.dtype.registers + OVERHEAD_REGISTERS,
            smem_bytes=max(rings, sums) * problem.dtype.element_bytes,
            bytes_in_flight=on_their_way * problem.dtype.element_bytes,
            reuse=config.tile,
        )

    def launch(self, config: C, problem: Problem) -> Launch:
        return Launch(
            threads=config.threads,
            rows_per_block=config.tile,
            columns_per_block=config.tile,
            smem_bytes=self.resources(config, problem).smem_bytes,
            splits=config.splits,
        )

    def periods(self, config: C, problem: Problem) -> Periods:
        return Periods(config.tile, config.tile, config.chunk)

    def traffic(self, config: C, problem: Problem) -> Traffic:
        tiles = -(-problem.m // config.tile)
        return Traffic(tiles * problem.read_bytes, problem.written_bytes)

    def supports(self, problem: Problem) -> bool:
        return problem.is_gram and problem.dtype_name in self.dtypes and problem.m <= LARGEST_THIN

    def probe_shapes(self, config: C, problem: Problem) -> tuple[tuple[int, int, int], ...]:
        """Part-filled and several tiles of C; k of no whole chunk, of a part of one, and several for each ring.

        The first fills the tile and has a rest of k; k of 1 more than a multiple of 4 has aligned addresses where the
        leading dimensions of the general call are not, or the other way round; the last has a second tile that
        is full.
        """
        tile, chunk = config.tile, config.chunk
        rings = config.splits * (config.threads // config.sharers)
        sizes_and_k = (
            (tile, chunk * (rings * config.stages + 3) + 4),
            (tile + 1, 2 * chunk + 3),
            (tile - 1, max(chunk // 4 - 1, 1)),
            (tile + 4, 2 * chunk + 1),
            (tile - 4, chunk),
            (tile, 2 * chunk + 1),
            (2 * tile, chunk * (2 * rings + 1) + 2),
        )
        return tuple((size, size, k) for size, k in sizes_and_k)

    def context(self, config: C, problem: Problem) -> dict[str, Any]:
        return {
            "about": "a matrix transposed times itself, each product once",
            "kernel": self.name,
            "storage": problem.storage,
            "along_k": problem.contiguous[0] == "k",
            "c_along_n": problem.row_major_c,
            "pitch": self.pitch(config, problem),
            "mirrored": mirrored(problem),
            "flat_splits": self.launch(config, problem).flat_splits,
            "group_splits": GROUP_SPLITS,
        }
