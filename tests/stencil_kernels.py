"""The universal stencil's kernels for the tests on a GPU: of `gemm`, and of `minplus` in the semiring (min, +)."""

from __future__ import annotations

from itertools import product

from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.dtypes import DTYPES
from tsm2_tune.generator.families import family_named
from tsm2_tune.generator.families.gemm import GemmConfig, MinplusConfig
from tsm2_tune.generator.families.gemm.stencil import with_widest_grids
from tsm2_tune.generator.problem import COLUMN_MAJOR, Problem
from tsm2_tune.generator.tiling import VECTOR_BYTES

# In each case that BLAS has.
STENCILS = [
    (config, problem)
    for family in (family_named("gemm"), family_named("minplus"))
    for dtype in family.dtypes
    for op in (*map("".join, product("ntc" if DTYPES[dtype].is_complex else "nt", repeat=2)), "ttt", "tx")
    for problem in (Problem(512, 512, 512, dtype, op),)
    for config in family.proposals(problem, PROFILES["h200"])[:1]
]
# And those that load several elements at a time, or copy them: tiles of 64 x 32, and in one order the first choices.
STENCILS += [
    (config, problem)
    for family, made in ((family_named("gemm"), GemmConfig), (family_named("minplus"), MinplusConfig))
    for dtype in family.dtypes
    for width in (VECTOR_BYTES // DTYPES[dtype].element_bytes,)
    for op in ("nn", "nt", "tn", "tt", *(("cn", "jc") if DTYPES[dtype].is_complex else ()))
    for problem in (Problem(512, 512, 512, dtype, op),)
    for config in (
        *(
            with_widest_grids(made, problem, 64, 32, 16, 8, 8, width, load, buffers)
            for load, buffers in ((width, 1), (width, 2), (1, 2))
            if load * buffers > 1
        ),
        *(one for one in family.proposals(problem, PROFILES["h200"])[1:] if op == "nn"),
    )
]


def stencil(op: str = "nn", vector: int = 1, read: str = "nc", load: int = 1, buffers: int = 1) -> GemmConfig:
    """Tiles of 24 x 32 in stripes of 8; the reading grids are turned where the operands are, and are no squares."""
    grid_a = (8, 4) if op[0] in COLUMN_MAJOR and load == 1 else (4, 8)
    grid_b = (2, 16) if op[1] in COLUMN_MAJOR else (16, 2)
    return GemmConfig(24, 32, 8, 4, 8, *grid_a, *grid_b, vector, read, load, buffers)
