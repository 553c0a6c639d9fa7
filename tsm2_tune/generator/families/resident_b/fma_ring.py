"""A tall row-major A times a small B, for rows of A and C that are not whole vectors.

If a matrix has no gaps between rows, a tile of whole rows is contiguous, and is copied in 16-byte vectors whatever
the length of a row. A lane computes whole rows of its own from shared memory. A block has B, several tiles of A and
one tile of C in shared memory. The kernel chooses the number of rows of a tile at run time: as many as fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from tsm2_tune.generator.config import Periods, Resources
from tsm2_tune.generator.families.family import WARP_THREADS, rule_of, vector_elements
from tsm2_tune.generator.families.resident_b.kernel import (
    PERSISTENT_RULES,
    PersistentResidentB,
    ResidentBConfig,
)
from tsm2_tune.generator.paper_model import OVERHEAD_REGISTERS
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.rules import covering_rule
from tsm2_tune.generator.space.tunables import Tunable
from tsm2_tune.generator.split_k import SPLITS_OF_GRIDS
from tsm2_tune.generator.tiling import VECTOR_BYTES, BlockPlan

ROWS = (1, 2, 4)
COLUMNS = (2, 4, 8, 16)
STAGES = (1, 2, 3)
MOST_EXTENT = 64  # the largest n and k; above it, the families for larger products reuse A
MOST_SUMS = 32  # the most registers for a lane's sums: with more, 16 warps per multiprocessor spill
MOST_REGISTERS = 128  # the registers of a thread if a multiprocessor holds 16 warps
COPY_REGISTERS = 60  # registers for the addresses of copies


@dataclass(frozen=True, slots=True)
class ResidentBFmaRingConfig(ResidentBConfig):
    family: ClassVar[str] = "resident_b_fma_ring"

    rows: Annotated[int, Tunable("rows of C that one lane accumulates in registers")]
    columns: Annotated[int, Tunable("columns of C that one lane accumulates in registers", symbol="t2")]
    stages: Annotated[
        int, Tunable("pipeline stages, each with a tile of A; the kernel uses fewer if most warps would be idle")
    ]
    smem_kb: Annotated[int, Tunable("KiB of shared memory of a block: B, the ring, and a tile of C")]
    splits: Annotated[int, Tunable("blocks among which all rows are divided", default=1, is_launch=True)]


def strip(config: ResidentBFmaRingConfig) -> int:
    """Return the number of rows of a strip: those that a warp computes at a time."""
    return WARP_THREADS * config.rows


def pitch(length: int, problem: Problem) -> int:
    """Return the elements from a row of `length` elements to the next: an odd number of vectors."""
    return length + (vector_elements(problem) if length % (2 * vector_elements(problem)) == 0 else 0)


def most_strips(config: ResidentBFmaRingConfig, problem: Problem, *, n: int, k: int, places: int) -> int:
    """Return the largest number of strips per tile that fits in shared memory.

    A strip has 32 * `rows` rows: `rows` for each lane of a warp. Shared memory has B, `places` tiles of A, and a tile
    of C.
    """
    left = config.smem_kb * 1024 // problem.dtype.element_bytes - k * -(-n // config.columns) * config.columns
    return max(left, 0) // (strip(config) * (places * pitch(k, problem) + pitch(n, problem)))


def _tiles(config: ResidentBFmaRingConfig, problem: Problem) -> tuple[int, int]:
    """Return the number of pipeline stages, and the number of strips per tile that fit in shared memory.

    More stages leave room for fewer strips. The number of stages is the largest, up to the tunable `stages`, with
    which at least half of the warps have work in a tile.
    """
    groups = -(-problem.n // config.columns)
    for places in range(config.stages, 1, -1):
        strips = most_strips(config, problem, n=problem.n, k=problem.k, places=places)
        if 2 * strips * groups >= config.threads // WARP_THREADS:
            return places, strips
    return 1, most_strips(config, problem, n=problem.n, k=problem.k, places=1)


def _longest(config: ResidentBFmaRingConfig, problem: Problem) -> int:
    """Return the largest k for which B, one tile of A and one of C fit in shared memory if n is `config.columns`."""
    n = config.columns
    left = config.smem_kb * 1024 // problem.dtype.element_bytes - strip(config) * pitch(n, problem)
    most = left // (strip(config) + n)  # without the padding of A's rows
    return next(k for k in range(most, 0, -1) if most_strips(config, problem, n=n, k=k, places=1))


def is_odd(problem: Problem) -> bool:
    """Return whether rows of A or C are no power of two of vectors; otherwise other families are faster."""
    vectors = (problem.n / vector_elements(problem), problem.k / vector_elements(problem))
    return any(count != int(count) or int(count) & (int(count) - 1) for count in vectors)


def _has_room(config: ResidentBFmaRingConfig, problem: Problem) -> bool:
    places, strips = _tiles(config, problem)
    return places == config.stages and strips >= 1


class ResidentBFmaRing(PersistentResidentB[ResidentBFmaRingConfig]):
    summary = (
        "tall row-major A times small B, with rows that are not whole vectors: tiles copied as one contiguous piece"
    )
    about = "tiles of A and C copied through shared memory as one contiguous piece"
    template = "resident_b/fma_ring.cu.jinja"
    rules = (
        rule_of(
            "columns-are-vectors",
            "limit",
            "a lane's columns of B must be whole vectors in shared memory",
            lambda config, problem: config.columns % vector_elements(problem) == 0,
            of=("columns",),
        ),
        covering_rule("columns", "n", COLUMNS, vector_elements),
        rule_of(
            "sums-in-registers",
            "shape",
            "with 16 warps per multiprocessor, more sums per lane would spill",
            lambda config, problem: config.rows * config.columns * problem.dtype.sum.registers <= MOST_SUMS,
            of=("rows", "columns"),
        ),
        rule_of(
            "rows-are-odd",
            "shape",
            "other families are faster if rows of A and C are a power of two of vectors",
            lambda config, problem: is_odd(problem),
            of=(),
        ),
        rule_of(
            "all-has-room",
            "shape",
            "B, all pipeline stages and a tile of C must fit in shared memory",
            _has_room,
        ),
        *PERSISTENT_RULES,
    )
    without_vectors = 1.0  # no penalty: the kernel is made for unaligned lines
    config_type = ResidentBFmaRingConfig
    axes: ClassVar = {
        "threads": (128, 256),
        "rows": ROWS,
        "columns": COLUMNS,
        "stages": STAGES,
        "smem_kb": (55, 74, 112),  # blocks of these fit 4, 3 and 2 times on a multiprocessor of an H100 or H200
        "splits": SPLITS_OF_GRIDS,
    }

    def block_plan(self, config: ResidentBFmaRingConfig, problem: Problem) -> BlockPlan:
        """Return the block plan. A block computes all columns of C.

        If k does not fit in shared memory, the block computes C in several passes and reads C in each.
        """
        places, strips = _tiles(config, problem)
        in_flight = places * strips * strip(config) * problem.k * problem.dtype.element_bytes
        sums = config.rows * config.columns * problem.dtype.sum.registers
        factors = config.rows * VECTOR_BYTES // 4 + config.columns * problem.dtype.registers
        resources = Resources(
            threads=config.threads,
            registers=min(sums + factors + COPY_REGISTERS + OVERHEAD_REGISTERS, MOST_REGISTERS),
            smem_bytes=config.smem_kb * 1024,
            bytes_in_flight=in_flight // config.threads,
            reuse=config.columns,
        )
        even = 2 * vector_elements(problem)  # `pitch` pads rows of a multiple of this length
        tile, longest = Periods(strip(config), max(config.columns, even), even), _longest(config, problem)
        return self.persistent_block_plan(resources, tile, tile_n=0, n_padding=config.columns, k_per_pass=longest)

    def fits(self, problem: Problem) -> bool:
        """Return whether A and C are row-major and n and k small. The kernel computes larger ones part by part."""
        row_major = problem.contiguous[0] == "k" and problem.row_major_c
        small = max(problem.n, problem.k) <= MOST_EXTENT
        return super().fits(problem) and row_major and small

    def probe_shapes(self, config: ResidentBFmaRingConfig, problem: Problem) -> tuple[tuple[int, int, int], ...]:
        high, columns, even = strip(config), config.columns, 2 * vector_elements(problem)
        longest = _longest(config, problem)
        return (
            (2 * high * config.splits + 1, 1, 3),  # several strips for a block
            (min(high + 1, 67), 2 * columns + 1, 7),  # rows of an odd number of elements
            (2 * high + 8, max(2 * columns, even), even),  # rows of whole vectors with padding
            (high + 5, 3 * even // 2, 5 * even // 2),  # rows of whole vectors without padding
            (high + 3, even + even // 4 + 1, even + max(even // 4, 1)),  # rows that end with half a vector
            (37, 2 * columns + 1, longest + 3),  # n and k are too large for shared memory
            (high, columns, 2 * ((longest - 1) // even * even) + 1),  # only the last part of k has padded rows
        )
