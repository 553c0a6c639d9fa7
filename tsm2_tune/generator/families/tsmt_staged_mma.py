"""TSMT through shared memory: the transpose of a tall and skinny matrix times another, both operands staged.

In TSMT the threads of a tile each load what they need, and with a larger C each element is loaded by more of them:
the load unit is the limit then. Here every element comes from memory once, asynchronously, into a ring of chunks
in shared memory, as it lies in memory, and the threads read it from there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any, ClassVar

from tsm2_tune.generator.config import GROUP_SPLITS, KernelConfig, Launch, Resources, Traffic
from tsm2_tune.generator.families.family import Family, Tunable
from tsm2_tune.generator.limits import DeviceLimits
from tsm2_tune.generator.model import OVERHEAD_REGISTERS
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.rules import Candidate, Rule, covering_rule
from tsm2_tune.generator.splitting import REGISTERS_REACHABLE, WIDE_SPLIT_RULES, WIDE_SPLITS, tunable

THREADS = (128, 256)
TILE = (8, 16, 32, 64)  # rows and columns of C, of a block
THREAD_TILES = ((4, 4), (8, 8), (8, 16))  # the most rows and columns of C, of a thread
CHUNK = (32, 64, 128)
STEPS = (1, 2, 4)
STAGES = (2, 3, 4)
MIN_BLOCKS = (1, 2, 3)
WARP_THREADS, VECTOR_BYTES, BANKS, BANK_BYTES = 32, 16, 32, 4
LARGEST_THIN = 128  # of m and n: a C larger than that is no small result of a long sum


@dataclass(frozen=True, slots=True, order=True)
class TsmtStagedMmaConfig(KernelConfig):
    """Every choice that the template needs."""

    family: ClassVar[str] = "tsmt_staged_mma"
    letters: ClassVar[dict[str, str]] = {
        "threads": "t",
        "sharers": "w",
        "tile_rows": "m",
        "tile_columns": "n",
        "strips": "r",
        "octets": "c",
        "chunk": "d",
        "stages": "s",
        "through": "l",
        "splits": "k",
        "min_blocks": "b",
    }

    threads: int  # per block
    sharers: int  # threads that share a ring in shared memory
    tile_rows: int  # of C, of a block
    tile_columns: int  # of C, of a block
    strips: int  # of 16 rows of C, of a warp
    octets: int  # of 8 columns of C, of a warp
    chunk: int  # products along k in one place of the ring
    stages: int  # places of the ring
    through: int  # the cache that copies go through: 1 is the L1, 2 the L2 alone
    splits: int  # of k
    min_blocks: int  # on a multiprocessor, which bounds the registers


def team(config: TsmtStagedMmaConfig) -> int:
    """Threads that share a tile of C."""
    return 32 * (config.tile_rows // (16 * config.strips)) * (config.tile_columns // (8 * config.octets))


def pitches(config, problem):
    along_a, along_b, _ = problem.contiguous
    along_k = config.chunk if config.chunk % 16 else config.chunk + 8
    pad = int(os.environ.get("X_PAD", "2"))
    return (along_k if along_a == "k" else config.tile_rows + pad, along_k if along_b == "k" else config.tile_columns + pad)


def ring_elements(config: TsmtStagedMmaConfig, problem: Problem) -> int:
    """Of one ring."""
    along_a, along_b, _ = problem.contiguous
    a_pitch, b_pitch = pitches(config, problem)
    a = a_pitch * (config.tile_rows if along_a == "k" else config.chunk)
    b = b_pitch * (config.tile_columns if along_b == "k" else config.chunk)
    return config.stages * (a + b)


class TsmtStagedMma(Family[TsmtStagedMmaConfig]):
    name = "tsmt_staged_mma"
    summary = "transposed tall and skinny times tall and skinny: both staged in shared memory, k over every thread"
    template = "tsmt_staged_mma.cu.jinja"
    tunables = (
        Tunable("threads", "", "threads of a block"),
        Tunable("sharers", "", "threads that share a ring in shared memory: a warp or the block"),
        Tunable("tile_rows", "", "rows of C that one block computes"),
        Tunable("tile_columns", "", "columns of C that one block computes"),
        Tunable("rows", "", "rows of C that one thread accumulates in registers"),
        Tunable("columns", "", "columns of C that one thread accumulates in registers"),
        Tunable("chunk", "", "products along k in one place of the ring"),
        Tunable("step", "", "products along k that one thread multiplies at a time"),
        Tunable("stages", "", "places of the ring"),
        Tunable("splits", "", "blocks among which k is divided"),
        Tunable("min_blocks", "", "blocks that a multiprocessor must hold, which bounds the registers"),
    )
    rules = (
        covering_rule(
            "tile-rows-within-m",
            "a tile of more rows than C has computes rows that nobody asked for",
            tunable="tile_rows",
            options=TILE,
            extent=lambda problem: problem.m,
        ),
        covering_rule(
            "tile-columns-within-n",
            "a tile of more columns than C has computes columns that nobody asked for",
            tunable="tile_columns",
            options=TILE,
            extent=lambda problem: problem.n,
        ),
        *WIDE_SPLIT_RULES,
        REGISTERS_REACHABLE,
    )
    config_type = TsmtStagedMmaConfig

    def configurations(self) -> Iterator[TsmtStagedMmaConfig]:
        return iter(())

    def resources(self, config: TsmtStagedMmaConfig, problem: Problem) -> Resources:
        loaded = (16 * config.strips + 8 * config.octets) // 4
        sums = config.threads // team(config) * config.tile_rows * config.tile_columns
        rings = config.threads // config.sharers * ring_elements(config, problem)
        per_thread = ring_elements(config, problem) * (config.stages - 1) // config.stages // config.sharers
        return Resources(
            threads=config.threads,
            registers=(config.strips * config.octets * 4 + loaded) * problem.dtype.registers + OVERHEAD_REGISTERS,
            smem_bytes=max(sums, rings) * problem.dtype.element_bytes,
            bytes_in_flight=per_thread * problem.dtype.element_bytes // 2,
            reuse=8 * config.octets,
        )

    def launch(self, config: TsmtStagedMmaConfig, problem: Problem) -> Launch:
        return Launch(
            threads=config.threads,
            rows_per_block=config.tile_rows,
            columns_per_block=config.tile_columns,
            smem_bytes=self.resources(config, problem).smem_bytes,
            splits=config.splits,
        )

    def traffic(self, config: TsmtStagedMmaConfig, problem: Problem) -> Traffic:
        down, across = -(-problem.m // config.tile_rows), -(-problem.n // config.tile_columns)
        elements = problem.k * (problem.m * across + problem.n * down)
        return Traffic(elements * problem.dtype.element_bytes, problem.written_bytes)

    def supports(self, problem: Problem) -> bool:
        return problem.dtype_name == "f64" and max(problem.m, problem.n) <= LARGEST_THIN

    def probe_shapes(self, config: TsmtStagedMmaConfig, problem: Problem) -> tuple[tuple[int, int, int], ...]:
        chunk = config.chunk
        rows, columns = config.tile_rows, config.tile_columns
        rings = config.threads // config.sharers * config.splits
        return (
            (rows, columns, chunk * (rings * config.stages + 3) + 3),
            (rows + 1, max(columns - 1, 1), 2 * chunk + 3 + 1),
            (max(rows - 1, 1), columns + 1, max(7, 1)),
            (rows + 2, columns + 2, 2 * chunk + 1),
            (rows - 2, columns - 2, chunk),
        )

    def context(self, config: TsmtStagedMmaConfig, problem: Problem) -> dict[str, Any]:
        along_a, along_b, _ = problem.contiguous
        a_pitch, b_pitch = pitches(config, problem)
        return {
            "about": "both operands staged in shared memory, k over every thread",
            "kernel": self.name,
            "storage": problem.storage,
            "a_along_k": along_a == "k",
            "b_along_k": along_b == "k",
            "c_along_n": problem.row_major_c,
            "a_pitch": a_pitch,
            "b_pitch": b_pitch,
            "symmetric": (along_a == "k") == (along_b == "k") and a_pitch == b_pitch,
            "groups": self.launch(config, problem).groups,
            "group_splits": GROUP_SPLITS,
            "prefetch": os.environ.get("X_PREFETCH", "128B"),
            "ahead": os.environ.get("X_AHEAD", "2"),
            "unroll": os.environ.get("X_UNROLL", "2"),
        }


FAMILY = TsmtStagedMma()
