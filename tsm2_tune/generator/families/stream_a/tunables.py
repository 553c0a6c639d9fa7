"""The configurations of stream_a: they have the same tunables, but for the one that counts rows of A."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.space.tunables import EvictFirst, MinBlocks, PartsOfK, RowTiles, Tunable

Threads = Annotated[int, Tunable("threads of a block", symbol="t1")]
ColumnsOfWarp = Annotated[int, Tunable("columns of C that one warp accumulates in registers", symbol="t2")]
PrefetchOfWarp = Annotated[
    int, Tunable("columns of A that one warp has in registers, on their way or arrived", symbol="t3")
]
Stages = Annotated[int, Tunable("groups in which these are used and loaded anew")]


@dataclass(frozen=True, slots=True)
class StreamAFmaConfig(KernelConfig):
    """Fused multiply-adds: a thread computes alone."""

    family: ClassVar[str] = "stream_a_fma"

    threads: Threads
    vectors: Annotated[int, Tunable("16-byte pieces of a column of A that one thread loads", default=1)]
    columns: Annotated[int, Tunable("columns of C that one thread accumulates in registers", symbol="t2")]
    prefetch: Annotated[
        int,
        Tunable("columns of A that one thread has in registers, on their way or arrived", symbol="t3"),
    ]
    stages: Stages
    splits: PartsOfK
    row_tiles: RowTiles
    min_blocks: MinBlocks
    evict_first: EvictFirst = 1


@dataclass(frozen=True, slots=True)
class StreamADmmaConfig(KernelConfig):
    """The f64 tensor cores."""

    family: ClassVar[str] = "stream_a_dmma"

    threads: Threads
    strips: Annotated[int, Tunable("strips of 16 rows of A that one warp computes")]
    columns: ColumnsOfWarp
    prefetch: PrefetchOfWarp
    stages: Stages
    splits: PartsOfK
    row_tiles: RowTiles
    min_blocks: MinBlocks
    evict_first: EvictFirst = 1


@dataclass(frozen=True, slots=True)
class StreamAComplexDmmaConfig(StreamADmmaConfig):
    """Complex numbers on the f64 tensor cores."""

    family: ClassVar[str] = "stream_a_complex_dmma"

    strips: Annotated[int, Tunable("strips of 8 vectors of rows of A that one warp computes")]


@dataclass(frozen=True, slots=True)
class Mma16Config(KernelConfig):
    """The tensor cores for 16-bit floats and TF32."""

    threads: Threads
    lane_rows: Annotated[int, Tunable("rows of C of which a lane has sums, an eighth of a warp's")]
    columns: ColumnsOfWarp
    prefetch: PrefetchOfWarp
    stages: Stages
    splits: PartsOfK
    row_tiles: RowTiles
    min_blocks: MinBlocks


@dataclass(frozen=True, slots=True)
class StreamAMma16Config(Mma16Config):
    """16-bit floats, with A in registers."""

    family: ClassVar[str] = "stream_a_mma16"

    evict_first: EvictFirst = 1


@dataclass(frozen=True, slots=True)
class StreamATf32Config(StreamAMma16Config):
    """f32 through TF32, with A in registers."""

    family: ClassVar[str] = "stream_a_tf32"


@dataclass(frozen=True, slots=True)
class StreamAMma16RingConfig(Mma16Config):
    """16-bit floats, with A in a ring in shared memory: `prefetch` and `stages` are the ring's."""

    family: ClassVar[str] = "stream_a_mma16_ring"

    prefetch: Annotated[
        int, Tunable("columns of A that one warp has in its ring, on their way or arrived", symbol="t3")
    ]


@dataclass(frozen=True, slots=True)
class StreamATf32RingConfig(StreamAMma16RingConfig):
    """f32 through TF32, with A in a ring in shared memory."""

    family: ClassVar[str] = "stream_a_tf32_ring"


StreamAConfig = StreamAFmaConfig | StreamADmmaConfig | Mma16Config
