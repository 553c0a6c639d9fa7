"""Inner products on tensor cores in bf16, f16, TF32 and 3xTF32: both operands pass through shared memory.

Loads of fragments straight from device memory would read few bytes of each of many rows or columns. So both operands
are copied to shared memory, at least 128 contiguous bytes at a time. Rows or columns beyond a small C are not copied.
Then ldmatrix loads four 8 x 8 matrices per instruction. Sums are in f32, and C is rounded once, at the end.

16 bytes hold half as many TF32 elements as 16-bit elements, and the mma instruction for TF32 has half the k extent.
So ldmatrix also loads f32 operands that are contiguous along k. For other f32 operands a lane loads single elements.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any, ClassVar

from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.device.tensor_cores import HAS_HALF_TENSOR_CORES
from tsm2_tune.generator.families.family import WARP_THREADS, WITHOUT_VECTORS
from tsm2_tune.generator.families.inner.kernel import Inner, InnerConfig, Splits, proposed_splits
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.tunables import EvictFirst, Tunable, WarpOctets, WarpStrips
from tsm2_tune.generator.split_k import CHUNKS_FOR_ALL, SPLITS_OF_GRIDS, WIDE_SPLIT_RULES
from tsm2_tune.generator.tiles import covering, tile_rules
from tsm2_tune.generator.tiling import VECTOR_BYTES

TILE = (16, 32, 64)  # options of block_m and of block_n
WARP_TILES = ((1, 2), (2, 2), (2, 4), (4, 4), (4, 8))  # m16 and n8 tiles per warp
# Options of (threads, bytes of block_k elements, stages).
RINGS = (
    (128, 128, 2), (128, 256, 2), (128, 512, 2), (128, 1024, 2), (256, 128, 2), (256, 256, 2), (256, 512, 2),
    (256, 1024, 2), (512, 512, 2), (128, 256, 4), (128, 512, 4), (256, 1024, 4),
)  # fmt: skip
TILE_ELEMENTS = (16 * 16, 32 * 32, 64 * 64)
# Fastest on an H200, by the most elements of a tile and whether an operand is contiguous along k: threads, bytes of
# block_k elements, stages, blocks per multiprocessor, and the most strips and octets of a warp.
WINNERS: dict[tuple[int, bool], tuple[tuple[int, int, int, int, int, int], ...]] = {
    (16 * 16, True): (
        (256, 512, 2, 3, 1, 2), (512, 512, 2, 2, 1, 2), (256, 256, 2, 4, 1, 2), (256, 512, 2, 4, 1, 2),
        (128, 256, 2, 4, 1, 2), (256, 512, 2, 2, 1, 2),
    ),
    (16 * 16, False): (
        (128, 512, 4, 2, 1, 2), (256, 1024, 4, 1, 1, 2), (128, 1024, 2, 2, 1, 2), (128, 256, 2, 4, 1, 2),
        (256, 1024, 2, 2, 1, 2), (256, 512, 2, 2, 1, 2),
    ),
    (32 * 32, True): (
        (256, 512, 2, 2, 2, 4), (256, 256, 2, 3, 2, 4), (128, 256, 2, 3, 2, 4),
    ),
    (32 * 32, False): (
        (128, 256, 4, 2, 2, 4), (256, 512, 2, 2, 2, 4), (128, 512, 2, 2, 2, 4), (128, 256, 2, 3, 2, 4),
    ),
    (64 * 64, True): (
        (256, 256, 2, 2, 2, 4), (128, 128, 2, 2, 4, 8), (256, 128, 2, 3, 2, 4), (128, 128, 2, 3, 4, 4),
        (256, 256, 2, 1, 4, 8),
    ),
    (64 * 64, False): (
        (256, 256, 2, 2, 2, 4), (128, 128, 2, 2, 4, 8), (128, 128, 2, 3, 4, 4), (128, 128, 2, 3, 2, 4),
    ),
}  # fmt: skip
LEAST_COLUMNS = 5  # for fewer columns, families in which a thread accumulates all of C are faster
STRIP_ROWS, OCTET = 16, 8  # rows and columns of an mma


@dataclass(frozen=True, slots=True)
class InnerMma16Config(InnerConfig):
    family: ClassVar[str] = "inner_mma16"

    strips: WarpStrips
    octets: WarpOctets
    block_k: Annotated[int, Tunable("k extent of one pipeline stage")]
    stages: Annotated[
        int, Tunable("pipeline stages in shared memory: 2 are filled through registers, more by async copies")
    ]
    splits: Splits
    evict_first: EvictFirst = 1

    @property
    def warp_tile(self) -> tuple[int, int]:
        """The rows and columns of C that a warp computes."""
        return STRIP_ROWS * self.strips, OCTET * self.octets

    @property
    def lanes_of_k(self) -> int:
        return self.warps_of_k(*self.warp_tile)


@dataclass(frozen=True, slots=True)
class InnerTf32Config(InnerMma16Config):
    family: ClassVar[str] = "inner_tf32"


def warp_tile(strips: int, octets: int) -> tuple[int, int]:
    """Return the largest of the WARP_TILES with at most `strips` m16 tiles and `octets` n8 tiles."""
    return max(option for option in WARP_TILES if option[0] <= strips and option[1] <= octets)


def _axes(element_bytes: int) -> dict[str, Any]:
    return {
        "block_m block_n strips octets": [
            (rows, columns, strips, octets)
            for rows, columns, (strips, octets) in product(TILE, TILE, WARP_TILES)
            if rows % (STRIP_ROWS * strips) == 0 and columns % (OCTET * octets) == 0
        ],
        "threads block_k stages": [(threads, line // element_bytes, stages) for threads, line, stages in RINGS],
        "splits": SPLITS_OF_GRIDS,
    }


def _has_whole_teams(element_bytes: int) -> dict[str, Any]:
    """Return the condition that each k slice has at least two vectors of a line of a k tile."""
    vector = VECTOR_BYTES // element_bytes
    return {
        "block_m block_n strips octets threads block_k stages": lambda config: (
            1 <= config.lanes_of_k <= config.block_k // (2 * vector)
        )
    }


class InnerMma16(Inner[InnerMma16Config]):
    on_tensor_cores = True
    without_vectors = 1.6  # on an H200, at 56 unseen shapes, measured over expected time is 0.9 to 3.0, median 1.8
    summary = (
        "transposed tall and skinny times tall and skinny in 16 bits on the tensor cores, both through shared memory"
    )
    about = "both operands through shared memory, k divided among all warps"
    template = "inner/mma16.cu.jinja"
    dtypes: ClassVar[tuple[str, ...]] = ("bf16", "f16")
    element_bytes = 2
    axes = _axes(2)
    where = _has_whole_teams(2)
    rules = (HAS_HALF_TENSOR_CORES, *tile_rules(TILE), CHUNKS_FOR_ALL, *WIDE_SPLIT_RULES)
    divides = True
    is_flat = False
    config_type = InnerMma16Config

    def later(self, config: InnerMma16Config) -> tuple[InnerMma16Config, ...]:
        """Return no variants for more than two stages: asynchronous copies have no eviction policy to vary."""
        return super().later(config) if config.stages == 2 else ()

    def block_k(self, config: InnerMma16Config, problem: Problem) -> int:
        return config.block_k

    def pitches(self, config: InnerMma16Config, problem: Problem) -> tuple[int, int]:
        """Return the distances in elements from one contiguous line to the next in shared memory, for A and for B.

        Padding avoids bank conflicts. If an operand is contiguous along k, 8 lanes read 16 bytes each at the same
        time, from 8 lines that are an odd number of vectors apart. If an f32 operand is not contiguous along k, each
        lane of a warp reads one element: 8 adjacent elements at each of 4 values of k.
        """
        along_k, across = config.block_k + VECTOR_BYTES // self.element_bytes, 8
        along_a, along_b, _ = problem.contiguous
        return (
            along_k if along_a == "k" else config.block_m + across,
            along_k if along_b == "k" else config.block_n + across,
        )

    def staged_bytes(self, config: InnerMma16Config) -> int:
        """Return the bytes of A and B in one pipeline stage, without padding."""
        return (config.block_m + config.block_n) * config.block_k * self.element_bytes

    def ring_bytes(self, config: InnerMma16Config, problem: Problem) -> int:
        along_a, along_b, _ = problem.contiguous
        a_pitch, b_pitch = self.pitches(config, problem)
        a = a_pitch * (config.block_m if along_a == "k" else config.block_k)
        b = b_pitch * (config.block_n if along_b == "k" else config.block_k)
        return config.stages * (a + b) * self.element_bytes

    def registers(self, config: InnerMma16Config, problem: Problem) -> int:
        rows, columns = config.warp_tile
        held = self.staged_bytes(config) // config.threads // 4 if config.stages == 2 else 0
        return (rows * columns + (rows + columns) * 4) // WARP_THREADS + held

    def bytes_in_flight(self, config: InnerMma16Config, problem: Problem) -> int:
        return self.staged_bytes(config) * (config.stages - 1) // config.threads // 2

    def probe_shapes(self, config: InnerMma16Config, problem: Problem) -> tuple[tuple[int, int, int], ...]:
        rows, columns, block_k = config.block_m, config.block_n, config.block_k
        return (
            (rows, columns, block_k * (config.splits * config.stages + 3) + 8),  # several k tiles for each block
            (rows + 1, columns - 1, 2 * block_k + 3),
            (rows - 8, columns + 8, block_k * 3 + 8),  # vectors are whole and tiles partial
            (rows - 1, columns + 1, block_k // 4 - 1),  # less than a k tile
            (rows + 8, columns + 8, 2 * block_k + 1),
            (rows + 1, columns + 1, 2 * block_k),
            (rows - 2, columns - 2, block_k),
        )

    def proposals(self, problem: Problem, limits: DeviceLimits) -> tuple[InnerMma16Config, ...]:
        """Return what was fastest on an H200 for this size and layout; none for fewer than 5 rows and columns."""
        if max(problem.m, problem.n) < LEAST_COLUMNS:
            return ()
        block_m, block_n = covering(TILE, problem.m), covering(TILE, problem.n)
        winners = WINNERS[
            next(elements for elements in TILE_ELEMENTS if elements >= block_m * block_n),
            "k" in problem.contiguous[:2],
        ]
        return tuple(
            dict.fromkeys(
                self.config_type(
                    threads,
                    block_m,
                    block_n,
                    *warp_tile(min(strips, block_m // STRIP_ROWS), min(octets, block_n // OCTET)),
                    line_bytes // self.element_bytes,
                    stages,
                    splits,
                )
                for threads, line_bytes, stages, blocks, strips, octets in winners
                for splits in proposed_splits(
                    problem, limits, block_k=line_bytes // self.element_bytes, blocks=blocks
                )
            )
        )

    def context(self, config: InnerMma16Config, problem: Problem) -> dict[str, Any]:
        a_pitch, b_pitch = self.pitches(config, problem)
        own = {"strip_rows": STRIP_ROWS, "a_pitch": a_pitch, "b_pitch": b_pitch}
        return super().context(config, problem) | own


class InnerTf32(InnerMma16):
    without_vectors = WITHOUT_VECTORS
    summary = "transposed tall and skinny times tall and skinny in TF32 or 3xTF32: both through shared memory"
    dtypes = ("tf32", "3xtf32")
    element_bytes = 4
    axes = _axes(4)
    where = _has_whole_teams(4)
    config_type = InnerTf32Config
