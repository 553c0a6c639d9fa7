"""Both operands through shared memory, complex, on the f64 tensor cores: staged, and read as fragments.

A complex product is four real ones. The f64 tensor cores have as many of them a second as the fused multiply-adds of
f32 and leave most of the issue slots free, so that c64 is computed by them too, in double precision: its elements are
staged as they are and become doubles when they are read. In double precision three real products do for one of c64:
of the real parts, of the imaginary parts and of their sums; four where the parts of an element are too far apart for
that. A C of many rows is served too, up to 64 columns wide, and one that is large both ways.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Annotated, Any, ClassVar

from tsm2_tune.generator.config import Resources
from tsm2_tune.generator.model import OVERHEAD_REGISTERS
from tsm2_tune.generator.problem import INT32_MAX, Problem
from tsm2_tune.generator.split_k import WIDE_SPLITS
from tsm2_tune.generator.staging import (
    BLOCKS_FOR_ALL,
    WARP_THREADS,
    StagingConfig,
    StagingFamily,
    staging_rules,
)
from tsm2_tune.generator.tensor_cores import HAS_F64_TENSOR_CORES
from tsm2_tune.generator.tiles import is_general
from tsm2_tune.generator.tunables import Tunable

TILE, COVERED = (16, 32, 64, 128, 256), 64  # rows of C, of a block; up to COVERED one tile has all
COLUMNS, THREES = (16, 24, 32, 48, 64), (24, 48)  # of its columns, and those of three octets a warp
TILES = tuple(product(TILE, COLUMNS))
WARP_TILES = ((2, 2), (4, 2), (2, 4), (4, 4), (2, 3), (4, 3))  # strips of 8 rows, octets of columns
# Threads of a block and of a ring, the chunk and the places of the ring, and what is on the way there.
RINGS = (
    (128, 128, 128, 2, 0), (128, 128, 64, 2, 0), (128, 128, 64, 2, 1), (128, 128, 32, 2, 1), (128, 128, 32, 3, 1),
    (128, 128, 16, 2, 1), (128, 128, 16, 3, 1), (128, 128, 16, 4, 1), (128, 128, 8, 3, 1), (128, 128, 8, 4, 1),
    (128, 128, 8, 6, 1), (256, 256, 64, 2, 1), (256, 256, 32, 2, 1), (256, 256, 16, 2, 1), (256, 256, 16, 3, 1),
    (256, 256, 16, 4, 1), (256, 256, 8, 4, 1), (256, 256, 8, 6, 1),
)  # fmt: skip
COLUMNS_OF_LARGE = range(9, 65)  # that a C of many rows must have
MOST_AHEAD_OF_COPIES = 8  # strips times octets: with more, the compiler spills what is loaded before copies begin
LINES, DEPTH = 8, 8  # of a strip or an octet; most products of a read
REGISTERS_OF_C128 = 4


@dataclass(frozen=True, slots=True, order=True)
class StagedZmmaConfig(StagingConfig):
    """Every choice that the template needs."""

    family: ClassVar[str] = "staged_zmma"

    strips: Annotated[
        int, Tunable("strips of 8 rows of C that one warp accumulates in registers", word="warp", unit=8, letter="r")
    ]
    octets: Annotated[
        int, Tunable("octets of columns of C that one warp accumulates in registers", word="warp", unit=8, letter="c")
    ]
    ahead: Annotated[
        int,
        Tunable(
            "1: a chunk's first products are loaded before the last of the one before are multiplied",
            usual=0,
            word="fragment_prefetch",
            letter="a",
        ),
    ]


def warp_tile(rows: int, columns: int, strips: int, octets: int, *, least_warps: int) -> tuple[int, int] | None:
    """Of at most so many strips and octets the largest that divides the block's tile among enough warps; None where
    none does."""
    down, across = rows // LINES, columns // LINES
    options = (
        option
        for option in WARP_TILES
        if option[0] <= min(strips, down)
        and (option[1] == 3 if columns in THREES else option[1] <= min(octets, across) and option[1] != 3)
        and (down // option[0]) * (across // option[1]) >= least_warps
    )
    return max(options, default=None)


def _bounds(rows: int, columns: int) -> tuple[int, ...]:
    """Blocks that a multiprocessor must hold for a tile of C: those that made a difference on an H200."""
    if rows > COVERED:
        return (1,)
    return (1, 3) if rows * columns <= 32 * 32 else (0, 1)  # 0: c128, 64 x 64, with 196 registers instead of 250


def has_three_products(problem: Problem) -> bool:
    """Whether three products of real numbers do for a complex one: where sums have more bits than the parts.

    In f64 they have 29 more than c64's. The kernel finds the elements whose parts differ in size by more than that.
    """
    return problem.dtype_name == "c64"


class StagedZmma(StagingFamily[StagedZmmaConfig]):
    name = "staged_zmma"
    on_tensor_cores = True
    summary = "complex, more than 8 columns: both operands staged, on the f64 tensor cores"
    template = "staged_zmma.cu.jinja"
    dtypes = ("c64", "c128")
    rules = (
        HAS_F64_TENSOR_CORES,
        BLOCKS_FOR_ALL,
        *staging_rules(TILE, columns=COLUMNS, covered=COVERED),
    )
    config_type = StagedZmmaConfig

    def configurations(self) -> Iterator[StagedZmmaConfig]:
        tiles = [(*tile, bound) for tile in TILES for bound in _bounds(*tile)]
        for (rows, columns, bound), ring, splits, (strips, octets), ahead in product(
            tiles, RINGS, WIDE_SPLITS, WARP_TILES, (0, 1)
        ):
            if rows % (LINES * strips) == 0 and columns % (LINES * octets) == 0:
                config = StagedZmmaConfig(*ring[:2], rows, columns, *ring[2:], splits, bound, strips, octets, ahead)
                if self._divides(config):
                    yield config

    def _divides(self, config: StagedZmmaConfig) -> bool:
        """Whether the teams of a ring are whole, and have a step of each chunk."""
        team = self.team(config)
        return config.sharers % team == 0 and config.chunk * team >= config.sharers * DEPTH

    def team(self, config: StagedZmmaConfig) -> int:
        rows, columns = LINES * config.strips, LINES * config.octets
        return WARP_THREADS * (config.tile_rows // rows) * (config.tile_columns // columns)

    def sums_in_registers(self, config: StagedZmmaConfig) -> bool:
        return self.team(config) == config.threads

    def registers(self, config: StagedZmmaConfig) -> int:
        """As elements of c128: sums, and what a lane has at a time of A, as matrices of real numbers, and of B."""
        return 2 * config.strips * config.octets + 2 * config.strips + config.octets

    def resources(self, config: StagedZmmaConfig, problem: Problem) -> Resources:
        elements = self.registers(config)
        if has_three_products(problem):  # a sum and a factor for each; and A and B as they lie, also those to come
            read = (config.strips + config.octets) * (1 + config.ahead) // 2  # half as long
            elements = 3 * (config.strips * config.octets + config.strips + 1) + read
        registers = elements * REGISTERS_OF_C128 + OVERHEAD_REGISTERS
        return replace(super().resources(config, problem), registers=registers)

    def context(self, config: StagedZmmaConfig, problem: Problem) -> dict[str, Any]:
        """A lane has neighbours along a row of C only in two octets, where a vector has two elements."""
        context = super().context(config, problem)
        whole = config.octets % 2 == 0 or problem.dtype_name == "c128" or not problem.row_major_c
        three = has_three_products(problem)  # which are chosen by what a chunk has, so it is there before its turn
        return {
            **context,
            "three_products": three,
            "arrives_early": bool(three or config.ahead),
            "loads_before_copies": three and config.strips * config.octets <= MOST_AHEAD_OF_COPIES,
            "sums_in_registers": context["sums_in_registers"] and whole,
        }

    def pitches(self, config: StagedZmmaConfig, problem: Problem) -> tuple[int, int]:
        """Eight threads read 16 bytes each at a time: 4 along k of 2 lines, or 2 side by side of 4 products."""
        along_a, along_b, _ = problem.contiguous
        b_along_k = config.chunk + (8 if config.octets % 2 and problem.dtype_name == "c64" else 4)
        return (
            config.chunk + 4 if along_a == "k" else config.tile_rows + 2,
            b_along_k if along_b == "k" else config.tile_columns + 2,
        )

    def probe_shapes(self, config: StagedZmmaConfig, problem: Problem) -> tuple[tuple[int, int, int], ...]:
        """As a part of a chunk one product, of which three real ones lose most."""
        shapes = super().probe_shapes(config, problem)
        if not has_three_products(problem):
            return shapes
        return tuple((m, n, 1 if k < config.chunk else k) for m, n, k in shapes)

    def supports(self, problem: Problem) -> bool:
        return problem.dtype_name in self.dtypes and max(problem.m, problem.n) <= self.largest(problem)

    def largest(self, problem: Problem) -> int:
        large = problem.n in COLUMNS_OF_LARGE or is_general(problem)
        return INT32_MAX if large else super().largest(problem)


FAMILIES = (StagedZmma(),)
