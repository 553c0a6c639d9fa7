"""The configurations of the stream_a families. They differ only in the tunable for rows of A."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.space.tunables import EvictFirst, MinBlocks, PartsOfK, RowTiles, Tunable

Threads = Annotated[int, Tunable("threads of a block", symbol="t1")]
ColumnsOfWarp = Annotated[int, Tunable("columns of C that one warp accumulates in registers", symbol="t2")]
PrefetchOfWarp = Annotated[
    int, Tunable("columns of A that one warp has in registers, in flight or in use", symbol="t3")
]
Stages = Annotated[int, Tunable("pipeline stages, each with an equal part of the prefetched columns")]


@dataclass(frozen=True, slots=True)
class StreamAFmaConfig(KernelConfig):
    family: ClassVar[str] = "stream_a_fma"

    threads: Threads
    vectors: Annotated[int, Tunable("16-byte pieces of a column of A that one thread loads", default=1)]
    columns: Annotated[int, Tunable("columns of C that one thread accumulates in registers", symbol="t2")]
    prefetch: Annotated[
        int,
        Tunable("columns of A that one thread has in registers, in flight or in use", symbol="t3"),
    ]
    stages: Stages
    splits: PartsOfK
    row_tiles: RowTiles
    min_blocks: MinBlocks
    evict_first: EvictFirst = 1


@dataclass(frozen=True, slots=True)
class StreamADmmaConfig(KernelConfig):
    family: ClassVar[str] = "stream_a_dmma"

    threads: Threads
    strips: Annotated[int, Tunable("m16 tiles of C that one warp computes")]
    columns: ColumnsOfWarp
    prefetch: PrefetchOfWarp
    stages: Stages
    splits: PartsOfK
    row_tiles: RowTiles
    min_blocks: MinBlocks
    evict_first: EvictFirst = 1


@dataclass(frozen=True, slots=True)
class StreamAComplexDmmaConfig(StreamADmmaConfig):
    family: ClassVar[str] = "stream_a_complex_dmma"

    strips: Annotated[int, Tunable("strips of C that one warp computes: of 8 rows for c128, of 16 for c64")]


@dataclass(frozen=True, slots=True)
class Mma16Config(KernelConfig):
    """The common tunables of the stream_a families on tensor cores in 16-bit floats and TF32."""

    threads: Threads
    lane_rows: Annotated[int, Tunable("rows of C that one lane accumulates, an eighth of its warp's rows")]
    columns: ColumnsOfWarp
    prefetch: PrefetchOfWarp
    stages: Stages
    splits: PartsOfK
    row_tiles: RowTiles
    min_blocks: MinBlocks


@dataclass(frozen=True, slots=True)
class StreamAMma16Config(Mma16Config):
    family: ClassVar[str] = "stream_a_mma16"

    evict_first: EvictFirst = 1


@dataclass(frozen=True, slots=True)
class StreamATf32Config(StreamAMma16Config):
    family: ClassVar[str] = "stream_a_tf32"


@dataclass(frozen=True, slots=True)
class StreamAMma16RingConfig(Mma16Config):
    family: ClassVar[str] = "stream_a_mma16_ring"

    prefetch: Annotated[
        int, Tunable("columns of A that one warp has in shared memory, in flight or in use", symbol="t3")
    ]


@dataclass(frozen=True, slots=True)
class StreamATf32RingConfig(StreamAMma16RingConfig):
    family: ClassVar[str] = "stream_a_tf32_ring"


StreamAConfig = StreamAFmaConfig | StreamADmmaConfig | Mma16Config
